"""One thread for all: tiny models only lose by sharing, and tests run beside each other."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)

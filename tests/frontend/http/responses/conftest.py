from functools import partial

import pytest

from .response_server import response_server


@pytest.fixture
def start(tmp_path):
    return partial(response_server, tmp_path)

"""Workers and standby workers import torch without parts that they seldom use, and get them when they need them."""

import json
import subprocess
import sys

import pytest

from paged_serve.workers.process.torch_import import DEFERRED

OPERATION = "torch.nn.functional.conv1d(*(torch.empty(1, 2, 8, device='meta') for _ in 'ab'))"
PROGRAM = f"""
import json, sys
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.process.standby import prepare
from paged_serve.workers.process.torch_import import DEFERRED, OF_META_DEVICE

prepare(ModelConfig(device="cpu"))
import torch

found = {{"imported": [name for name in (OF_META_DEVICE, *DEFERRED) if name in sys.modules]}}
found["product"] = (torch.ones(3) @ torch.ones(3, 2)).tolist()
try:
    found["on meta"] = {OPERATION}.device.type
except (NotImplementedError, RuntimeError):
    found["on meta"] = "none"
import torch._meta_registrations

found["on meta later"] = {OPERATION}.device.type, sys.modules[OF_META_DEVICE] is torch._meta_registrations
torch.ao.quantization, torch.distributions.Normal, torch.export.export, torch.masked.MaskedTensor
torch.nn.intrinsic.ConvReLU2d, torch.nn.qat.Linear, torch.nn.quantizable.LSTM, torch.nn.quantized.Linear
torch.quantization.quantize, torch.utils.data.DataLoader
found["used"] = [name for name in DEFERRED if name in sys.modules]
found["names"] = torch.export is sys.modules["torch.export"], hasattr(torch.distributions, "Gauss")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_standby_worker_imports_torch_without_what_it_seldom_uses(found):
    assert found["imported"] == []
    assert found["product"] == [3, 3]


def test_operations_on_meta_tensors_are_registered_by_a_later_import(found):
    assert (found["on meta"], found["on meta later"]) == ("none", ["meta", True])


def test_modules_are_imported_when_they_are_used(found):
    assert found["used"] == list(DEFERRED)
    assert found["names"] == [True, False]

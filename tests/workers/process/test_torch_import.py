"""A worker imports torch without the operations of the `meta` device, and gets them when it needs them."""

import subprocess
import sys

OPERATION = "torch.nn.functional.conv1d(*(torch.empty(1, 2, 8, device='meta') for _ in 'ab'))"
PROGRAM = f"""
import sys
from paged_serve.workers.process.torch_import import OF_META_DEVICE, import_torch

import_torch()
import torch

assert OF_META_DEVICE not in sys.modules
assert torch.equal(torch.ones(3) @ torch.ones(3, 2), torch.full((2,), 3.0))
try:
    {OPERATION}
except (NotImplementedError, RuntimeError):
    print("without")
import torch._meta_registrations

print({OPERATION}.device, sys.modules[OF_META_DEVICE] is torch._meta_registrations)
"""


def test_operations_on_meta_tensors_are_registered_by_a_later_import():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["without", "meta True"], done.stderr

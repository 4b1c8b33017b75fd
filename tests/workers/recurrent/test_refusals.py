"""Sizes of recurrent layers that no kernel knows are refused by name, before any weight is read."""

import json

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.backend import WITHOUT_RECURRENCES, CudaBackend
from paged_serve.workers.models.registry import read_geometry

from ..checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("mamba2", folder)
    return folder


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"state_size": 20}, "no kernel knows a Mamba 2 state size of 20; it must be a multiple of 8 up to 512"),
        ({"state_size": 1024}, "no kernel knows a Mamba 2 state size of 1024"),
        ({"conv_kernel": 9}, "no kernel knows a convolution of width 9; it must be 2 to 8"),
        ({"n_groups": 3}, "8 Mamba 2 heads of 16 elements cannot share 3 groups"),
        ({"head_dim": 24}, r"8 Mamba 2 heads of 24 elements are not the 2 \* hidden_size = 128 elements of a layer"),
        ({"time_step_limit": [1.0, 0.5]}, r"time_step_limit=\[1.0, 0.5\] must be two ascending numbers"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu is not supported for Mamba 2; only silu is"),
    ],
    ids=str,
)
def test_a_size_is_refused_by_name(folder, tmp_path, changed, reason):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)


@pytest.mark.parametrize("size", [3, 16])
def test_ranks_that_cannot_share_the_heads_are_refused(folder, size):
    _, geometry = read_geometry(folder)
    with pytest.raises(ConfigError, match=r"8 heads of its Mamba 2 layers|8 attention heads"):
        geometry.check_tensor_parallel(size)


def test_infinity_is_understood_as_python_writes_it(folder, tmp_path):
    text = (folder / "config.json").read_text()
    fields = json.loads(text) | {"time_step_limit": [0.0, float("inf")]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert read_geometry(tmp_path) == read_geometry(folder)


def test_cuda_is_refused():
    with pytest.raises(ConfigError, match=WITHOUT_RECURRENCES):
        CudaBackend(None, "sm_90", 1).recurrences()

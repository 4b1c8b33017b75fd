"""Models with experts and with latent attention on ranks of an emulated CUDA device, with captured graphs and without.

A graph holds the launches of a step for any tokens: how many rows an expert has is read when it is replayed.
"""

import json
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.kernel_list import load_kernels
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model

from ...workers.ranks import on_ranks
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..compilation.test_kernel_list import BLOCK_SIZE, NUM_BLOCKS, RecordingLauncher, take_steps
from ..emulated import EmulatorLauncher
from .test_ranks import EmulatedRanks, OneRank, with_graphs, without_graphs

NUM_EXPERTS = 6
PARTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


@pytest.fixture(scope="module")
def emulator():
    return EmulatorLauncher()


LATENT = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
}


@pytest.fixture(scope="module", params=["experts", "latent"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    return write_tiny_model(path, **LATENT) if request.param == "latent" else write_mixture(path)


def write_mixture(path):
    """The tiny model with six experts, each another permutation of its feed-forward's elements."""
    sizes = {"num_local_experts": NUM_EXPERTS, "num_experts_per_tok": 2, "sliding_window": None}
    write_tiny_model(path, model_type="mixtral", architectures=["MixtralForCausalLM"], **sizes)
    tensors, generator = load_file(path / "model.safetensors"), torch.Generator().manual_seed(1)
    for layer in range(json.loads((path / "config.json").read_text())["num_hidden_layers"]):
        own, mixture = f"model.layers.{layer}.mlp", f"model.layers.{layer}.block_sparse_moe"
        tensors[f"{mixture}.gate.weight"] = torch.randn(NUM_EXPERTS, 64, generator=generator).bfloat16() / 4
        for part, dense in PARTS.items():
            weight = tensors.pop(f"{own}.{dense}.weight")
            for expert in range(NUM_EXPERTS):
                order = torch.randperm(weight.numel(), generator=generator)
                tensors[f"{mixture}.experts.{expert}.{part}.weight"] = weight.flatten()[order].view(weight.shape)
    save_file(tensors, path / "model.safetensors")
    return str(path)


@pytest.mark.nightly
def test_one_rank_gives_the_same_bytes_with_and_without_graphs(emulator, folder):
    rank, group = OneRank(emulator, folder), TensorParallelGroup()
    assert with_graphs(rank, group) == without_graphs(rank, group)


@contextmanager
def two_ranks(place: Path, emulator, folder):
    ranks = EmulatedRanks(2, place, emulator, folder, 1)
    try:
        yield ranks
    finally:
        ranks.close()


@pytest.mark.nightly
def test_two_ranks_with_graphs_give_the_bytes_of_ranks_without(tmp_path, emulator, folder):
    with two_ranks(tmp_path / "meet", emulator, folder) as ranks:
        expected = ranks.on_each(lambda group: without_graphs(ranks, group))
        found = ranks.on_each(lambda group: with_graphs(ranks, group))
    assert found[0] == expected[0]
    assert not any(nan_indices for _, _, _, nan_indices in found[0])


@pytest.mark.nightly
def test_the_kernel_list_of_each_of_two_ranks_is_what_its_steps_launch(tmp_path, folder):
    """Only rank 0 samples. Large tiles of products of heads are for longer prompts."""
    one_at_a_time = Lock()

    def work(group):
        launcher = RecordingLauncher(one_at_a_time)
        backend = CudaBackend(launcher, "sm_90a", 2, device="cpu")
        model = load_model(folder, ModelConfig(device="cpu"), group, lambda done, total: None, backend=backend)
        load_kernels(model, torch.bfloat16, BLOCK_SIZE, lambda done, total: None)
        take_steps(model, KVCache.allocate(model.geometry, NUM_BLOCKS, BLOCK_SIZE, group.size), group)
        return set(launcher.launched), set(launcher.loaded)

    (launched, loaded), (launched_by_other, loaded_by_other) = on_ranks(2, tmp_path / "rendezvous", work)
    assert loaded == loaded_by_other
    assert launched | launched_by_other <= loaded
    assert {kernel.function for kernel in loaded - launched} <= {"expert_product"}

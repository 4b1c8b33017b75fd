"""Servers that share a tier, each with a model of a few thousand weights."""

import random

import pytest

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model

from ..tiny_models.tiny_lfm2 import write_tiny_lfm2
from ..tiny_models.tiny_model import write_tiny_model
from .tiered_process import LENGTH, VOCAB_SIZE, TieredProcess

WINDOWS = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 40}


def write_full(folder):
    write_tiny_model(folder, max_position_embeddings=LENGTH)


def write_other_weights(folder):
    write_tiny_model(folder, max_position_embeddings=LENGTH, seed=1)


def write_windows(folder):
    write_tiny_model(folder, max_position_embeddings=LENGTH, **WINDOWS)


def write_states(folder):
    write_tiny_lfm2(folder, max_position_embeddings=LENGTH, vocab_size=VOCAB_SIZE)


KINDS = {"full": write_full, "other weights": write_other_weights, "windows": write_windows, "states": write_states}


def random_prompt(length, seed):
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


@pytest.fixture
def serve(tmp_path, make_pool):
    """Starts servers in turn, on one tier. Those that are left open are closed at the end."""
    opened = []
    pool, models = make_pool(), {}

    def start(kind, dtype=None, **options):
        folder = tmp_path / kind
        if not folder.exists():
            folder.mkdir()
            KINDS[kind](folder)
        if kind not in models:
            config = ModelConfig(device="cpu", dtype="auto")
            models[kind] = load_model(str(folder), config, TensorParallelGroup(), lambda done, total: None, pool, None)
        chosen = type("Tiered", (TieredProcess,), {"cache_dtype": dtype})
        opened.append(process := chosen(models[kind], folder, tmp_path / "tier", **options))
        return process

    yield start
    for process in opened:
        process.close()

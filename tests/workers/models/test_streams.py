"""A model with several residual streams for each token: its memory, and its weights kept in packed form."""

import pytest
import torch

from paged_serve.workers.kv.budget import streams_bytes

from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from .contract import check_packed_weights, whole_prompt

PROMPT = random_tokens(100)


@pytest.fixture
def folder(tmp_path):
    write_checkpoint("gemma3n", tmp_path / "model", torch.bfloat16)
    return tmp_path / "model"


@pytest.fixture
def pool(make_pool):
    return make_pool() or pytest.skip("the kernels are not built")


def test_memory_is_reserved_for_the_streams_in_the_largest_step(folder, pool):
    model = ours(folder, pool=pool)
    whole_prompt(model, PROMPT)
    hidden = model.geometry.hidden_size
    pieces = model.backend._buffers._pieces.items()
    used = sum(piece.nbytes for (_, size, dtype), piece in pieces if dtype == torch.float32 and not size % hidden)
    assert used == streams_bytes(model.geometry, max_num_batched_tokens=len(PROMPT))


def test_packed_weights_are_kept_and_read_again(folder, tmp_path, pool):
    check_packed_weights(folder, tmp_path, pool, PROMPT)


def test_most_gates_are_dropped_where_the_pattern_says_so(folder, pool):
    layer = ours(folder, pool=pool).layers[0].feed_forward
    normed = torch.randn(7, 64, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    gates = layer.ops.norm(layer.gate(normed), layer.cut)
    assert 0 < (gates > 0).float().mean() < 0.1

"""A checkpoint with a head although its config ties the head to the embedding: handled as in transformers."""

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.workers.backends.torch.backend import TorchBackend

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, reference_logits, transformers_model
from ..tiny_models.tiny_model import write_tiny_model

PROMPT = [5, 80, 33, 290, 7]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WARNING = f"tensor {HEAD} differs from {EMBEDDING}"
HEADS = {
    "none": lambda embedding: None,
    "equal": lambda embedding: embedding.clone(),
    "equal in another dtype": lambda embedding: embedding.float(),
    "zero": lambda embedding: embedding * 0,
    "one number off": lambda embedding: embedding.index_put(
        (torch.tensor(299), torch.tensor(0)), torch.tensor(9.0).bfloat16()
    ),
}
DIFFER = ("zero", "one number off")


@pytest.fixture(params=HEADS)
def head(request):
    return request.param


@pytest.fixture
def folder(tmp_path, head):
    path = tmp_path / "model"
    path.mkdir()
    write_tiny_model(path, tie_word_embeddings=True)
    tensors = load_file(path / "model.safetensors")
    tensors[HEAD] = HEADS[head](tensors[EMBEDDING].bfloat16())
    if tensors[HEAD] is None:
        del tensors[HEAD]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def logits(model):
    """The logits [tokens, vocab] float32."""
    loop = PagedLoop(model)
    return loop.prefill(loop.row(PROMPT))


def test_the_files_head_is_used_where_it_differs_and_a_warning_names_it(folder, head, caplog):
    with caplog.at_level(logging.WARNING):
        found = logits(ours(folder, "float32", backend=TorchBackend()))
    assert torch.allclose(found, reference_logits(transformers_model(folder), PROMPT), atol=1e-4)
    assert (WARNING in caplog.text) == (head in DIFFER)


def test_the_files_head_is_also_used_by_kernels_and_packed_weights(folder, head, tmp_path, make_pool, caplog):
    if (pool := make_pool(1)) is None:
        pytest.skip("the kernels are not built")
    expected = logits(ours(folder, "float32", backend=TorchBackend()))
    for _ in range(2):
        caplog.clear()
        found = logits(ours(folder, "float32", pool=pool, packed_weights_dir=str(tmp_path / "kept")))
        assert torch.allclose(found, expected, atol=1e-4)
        assert (WARNING in caplog.text) == (head in DIFFER)


@pytest.mark.parametrize("head", ["one number off"], indirect=True)
def test_ranks_of_which_one_finds_a_difference_are_one_model(folder, tmp_path):
    expected = logits(ours(folder, "float32", backend=TorchBackend()))

    def work(group):
        return logits(ours(folder, "float32", group, backend=TorchBackend()))

    for found in on_ranks(2, tmp_path / "meet", work):
        assert torch.allclose(found, expected, atol=1e-4)

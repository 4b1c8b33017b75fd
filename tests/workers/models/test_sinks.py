"""Attention sinks: a family's spec names them, and a decoder built with it agrees with the formula of transformers."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.workers.models import registry
from paged_serve.workers.models.families.llama import LLAMA

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, reference, reference_greedy, reference_logits

SINKS = "model.layers.{}.self_attn.sinks"
LLAMA_WITH_SINKS = replace(LLAMA, weight_names=replace(LLAMA.weight_names, sinks=SINKS))


@pytest.fixture
def serve_sinks(monkeypatch):
    others = tuple(family for family in registry.FAMILIES if family is not LLAMA)
    monkeypatch.setattr(registry, "FAMILIES", (*others, LLAMA_WITH_SINKS))


def write_model(folder, dtype=torch.float32):
    """Writes a Llama with sinks, and returns transformers' model of the same with the attention of gpt-oss."""
    model = reference("llama-3.1", folder, dtype)
    tensors = load_file(folder / "model.safetensors")
    for index, layer in enumerate(model.model.layers):
        sinks = torch.linspace(-2, 6, 4, dtype=dtype) * (index + 1) / 2
        tensors[SINKS.format(index)] = sinks
        layer.self_attn.sinks = torch.nn.Parameter(sinks.float())
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model


def test_a_decoder_with_sinks_agrees_with_transformers(tmp_path, pools, serve_sinks, monkeypatch):
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
    from transformers.models.llama import modeling_llama

    model, prompt = write_model(tmp_path), random_tokens(150)
    plain = reference_logits(model, prompt)
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager_attention_forward)
    expected, text = reference_logits(model, prompt), reference_greedy(model, prompt[:70], 40)
    assert (plain - expected).abs().max() > 0.1 * expected.abs().max(), "sinks change little here"
    for pool in pools:
        loop = PagedLoop(ours(tmp_path, pool=pool))
        assert (loop.prefill(loop.row(prompt), chunk=64) - expected).abs().max() < 1e-4 * expected.abs().max()
        assert PagedLoop(ours(tmp_path, pool=pool)).greedy(prompt[:70], 40, chunk=48) == text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_neither_chunks_nor_ranks_change_a_bit(tmp_path, make_pool, serve_sinks, dtype):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    write_model(tmp_path, getattr(torch, dtype))
    prompt = random_tokens(90)
    loop = PagedLoop(ours(tmp_path, pool=make_pool()))
    expected = loop.prefill(loop.row(prompt))
    for chunk in (1, 7, 33):
        assert torch.equal(loop.prefill(loop.row(prompt), chunk), expected)

    def work(group):
        shared = PagedLoop(ours(tmp_path, group=group, pool=make_pool()))
        return shared.prefill(shared.row(prompt), chunk=40)

    for found in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(found, expected)

"""Latent attention: its cache, its refusals, and the determinism contract."""

import torch

from ..checkpoints import ours, random_tokens, reference, reference_logits
from ..paged_loop import PagedLoop


def test_plain_torch_agrees_with_transformers(tmp_path):
    prompt = random_tokens(60)
    for variant in ("deepseek-v2", "deepseek-v3"):
        expected = reference_logits(reference(variant, tmp_path / variant), prompt)
        loop = PagedLoop(ours(tmp_path / variant))
        found = loop.prefill(loop.row(prompt), chunk=32)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
        (keys, *_), (values, *_) = loop.cache.keys, loop.cache.values
        assert keys.data_ptr() == values.data_ptr()
        assert keys.shape == (64, 1, 16, 48)
        assert loop.model.geometry.kv_bytes_per_block(16, 1, torch.bfloat16) == 3 * 48 * 16 * 2

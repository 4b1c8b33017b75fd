"""An EAGLE-3 head that shares the table of a target with LoRA adapters: it looks its own tokens up, without them."""

from pathlib import Path

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.models.heads.eagle3_loading import load_eagle3

from ...adapters.loaded import adapted, step_of
from ...tiny_models.made_adapters import ALL_LINEAR, make_adapter
from ...tiny_models.made_eagle3 import write_head, write_target


@pytest.mark.parametrize("targets", [ALL_LINEAR, (*ALL_LINEAR, "embed_tokens")])
def test_a_head_is_independent_of_the_adapters_of_the_step(tmp_path, make_pool, targets):
    folder, pool = tmp_path / "target", make_pool()
    folder.mkdir()
    write_target(folder)
    adapter = make_adapter(tmp_path / "adapter", folder, targets=targets)
    target = adapted(folder, [adapter], pool)
    head = load_eagle3(Path(write_head(tmp_path / "head")), folder, ModelConfig(device="cpu"), target, pool)
    expected = head.embedding(torch.arange(5)).clone()
    target.adapters.step.tokens = step_of(target, 1)._groups(1)  # a step of one token, which has the adapter
    assert torch.equal(head.embedding(torch.arange(5)), expected)

"""A GGUF file has the bits of the folder that it is made of, for architectures that transformers lacks."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.frontend.gguf.folder import make_folder

from ...gguf_files import write_gguf
from ..models.families.test_changed_references import CASES
from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint

PROMPT = random_tokens(48)
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
FIELDS: Mapping[str, Mapping[str, Any]] = {  # that files cannot have otherwise
    "BailingMoeForCausalLM": {"qkv_bias": False, "rope_parameters": ROPE},
    "BailingMoeV2ForCausalLM": {},
    "DeepseekForCausalLM": {"rope_parameters": ROPE},
}
OWN: Mapping[str, Mapping[str, Any]] = {"BailingMoeForCausalLM": {"use_qkv_bias": False, "head_dim": 16}}

KEYS = {"BailingMoeV2ForCausalLM": {"rope__dimension_count": 12}}  # half of each head


def logits(folder, pool):
    loop = PagedLoop(ours(folder, pool=pool))
    return loop.prefill(loop.row(PROMPT))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.architecture in FIELDS], ids=lambda it: it.architecture
)
def test_logits_are_those_of_the_folder(case, tmp_path, make_pool):
    folder, pool = tmp_path / "folder", make_pool()
    write_checkpoint(case.variant, folder, torch.bfloat16, {**case.fields, **FIELDS[case.architecture]})
    settings, weights = folder / "config.json", folder / "model.safetensors"
    config, tensors = case.write(json.loads(settings.read_text()), load_file(weights))
    config |= {"architectures": [case.architecture], **OWN.get(case.architecture, {})}
    settings.write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights, {"format": "pt"})
    made = make_folder(
        write_gguf(folder, tmp_path / "model.gguf", **KEYS.get(case.architecture, {})), tmp_path / "made"
    )
    assert torch.equal(logits(made, pool), logits(folder, pool))

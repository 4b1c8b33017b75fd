"""Checkpoints that were quantized for a KV cache of other numbers are served without it, which the log says."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.modelopt_checkpoints import MODELOPT, own_file
from ..tiny_models.quantized_checkpoints import BLOCKS, FORMATS, edit, write_quantized

FLOAT8 = {"dynamic": False, "num_bits": 8, "type": "float"}
CASES = {  # the settings, and names of the scales of a layer's attention
    "ct-fp8-tensor": ({"kv_cache_scheme": FLOAT8}, ("k_scale", "v_scale")),
    "auto-fp8": ({"kv_cache_scheme": "static"}, ("k_proj.kv_scale", "v_proj.kv_scale")),
    "FP8": ({"kv_cache_scheme": FLOAT8}, ("k_proj.k_scale", "v_proj.v_scale")),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_checkpoint("qwen3", folder, torch.bfloat16)
    return folder


def logits(folder):
    loop = PagedLoop(ours(folder, "bfloat16"))
    return loop.prefill(loop.row(random_tokens(24)))


def add_scales(folder, scales):
    """Add scales of these names to each layer's attention."""
    more = {f"model.layers.{layer}.self_attn.{name}": torch.tensor(0.5) for layer in range(3) for name in scales}
    save_file(load_file(folder / "model.safetensors") | more, folder / "model.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_its_scales_are_not_used_which_the_log_says(name, source, tmp_path, caplog):
    settings, scales = CASES[name]
    write_quantized(source, tmp_path / "changed", (FORMATS | BLOCKS | MODELOPT)[name])
    expected = logits(tmp_path / "changed")
    add_scales(tmp_path / "changed", scales)
    with pytest.raises(ConfigError, match=rf"tensors that its config\.json does not explain: .*{scales[0]}"):
        ours(tmp_path / "changed")
    edit(tmp_path / "changed", settings)
    caplog.clear()
    assert torch.equal(logits(tmp_path / "changed"), expected)
    assert caplog.text.count("the checkpoint's settings of the KV cache are not used") == 1


def test_a_model_of_which_nothing_else_is_quantized_is_a_float_model(source, tmp_path):
    settings = own_file(MODELOPT["FP8"].config | {"quant_algo": None}, "FP8")
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
    add_scales(tmp_path, ("k_proj.k_scale", "v_proj.v_scale"))
    assert torch.equal(logits(tmp_path), logits(source))

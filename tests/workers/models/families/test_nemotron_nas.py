"""Nemotron NAS against Llama, in which a missing part of a layer adds zeros, and the narrow ones are padded."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.models.families.nemotron_nas import config

from ....gguf_files import write_gguf
from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, reference_logits, transformers_model, write_checkpoint
from ..contract import check_ranks_and_isas, check_steps

PROMPT = random_tokens(100)

HIDDEN, WIDE, NARROW = 384, 512, 256
MULTIPLIERS = {WIDE: 1.5, NARROW: 1.0}  # 2 / 3 * 384 * 1.5 = 384, rounded up to 512
# KV heads and elements of the feed-forward of each block; 0: it lacks the part.
BLOCKS = ((4, WIDE), (0, NARROW), (2, 0), (1, WIDE), (0, 0), (4, NARROW))
FIELDS = {
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": len(BLOCKS),
    "num_key_value_heads": 4,
}


def llama(folder):
    """A Llama whose layers add what those of the blocks do."""
    write_checkpoint("llama", folder, fields=FIELDS)
    model = transformers_model(folder)
    with torch.no_grad():
        for layer, (kv_heads, size) in zip(model.model.layers, BLOCKS, strict=True):
            if not kv_heads:
                layer.self_attn.o_proj.weight.zero_()
            for projection in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                heads = projection.weight.view(4, -1, HIDDEN)
                heads.copy_(heads[: max(kv_heads, 1)].repeat_interleave(4 // max(kv_heads, 1), 0))
            layer.mlp.down_proj.weight[:, size:].zero_()
    return model


def block_of(kv_heads, size):
    attention = {"n_heads_in_group": 4 // kv_heads, "no_op": False} if kv_heads else {"no_op": True}
    ffn = {"ffn_mult": MULTIPLIERS[size], "no_op": False} if size else {"no_op": True, "ffn_mult": None}
    return {"attention": attention | {"replace_with_linear": False, "window_length": None}, "ffn": ffn}


def cut(projection, tensor, kv_heads, size):
    match projection:
        case "k_proj" | "v_proj":
            return tensor.view(4, -1, HIDDEN)[:: 4 // kv_heads].flatten(0, 1)
        case "gate_proj" | "up_proj":
            return tensor[:size]
        case "down_proj":
            return tensor[:, :size]
        case _:
            return tensor


def write_nemotron(folder, model):
    """The model's files without parts that add zeros."""
    model.save_pretrained(folder)
    settings, weights, found = folder / "config.json", folder / "model.safetensors", {}
    for name, tensor in load_file(weights).items():
        layer, _, part = name.removeprefix("model.layers.").partition(".")
        if not layer.isdigit():
            found[name] = tensor
            continue
        kv_heads, size = BLOCKS[int(layer)]
        if kv_heads if part.startswith(("self_attn", "input_layernorm")) else size:
            found[name] = cut(part.split(".")[1], tensor, kv_heads, size).contiguous()
    fields = {"architectures": ["DeciLMForCausalLM"], "intermediate_size": None, "num_key_value_heads": None}
    config = json.loads(settings.read_text()) | fields | {"block_configs": [block_of(*each) for each in BLOCKS]}
    settings.write_text(json.dumps(config))
    save_file(found, weights, {"format": "pt"})


def test_float32_logits_agree_with_llama(tmp_path, pools):
    model = llama(tmp_path)
    expected = reference_logits(model, PROMPT)
    write_nemotron(tmp_path, model)
    for pool in pools:
        loop = PagedLoop(ours(tmp_path, pool=pool))
        assert (loop.prefill(loop.row(PROMPT), chunk=64) - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_chunks_neighbours_ranks_and_instruction_sets_change_no_bit(options, tmp_path):
    write_nemotron(tmp_path, llama(tmp_path))
    check_steps(tmp_path, "dot", options)
    check_ranks_and_isas(tmp_path, tmp_path, options)


def test_a_gguf_file_has_the_bits_of_the_folder(tmp_path, make_pool):
    folder, pool = tmp_path / "folder", make_pool()
    write_nemotron(folder, llama(folder).bfloat16())
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf"), tmp_path / "made")
    expected, found = (PagedLoop(ours(each, pool=pool)) for each in (folder, made))
    assert torch.equal(found.prefill(found.row(PROMPT)), expected.prefill(expected.row(PROMPT)))


def test_the_first_files_state_only_the_kv_heads_of_each_layer():
    fields = {"num_attention_heads": 8, "intermediate_size": 96, "hidden_size": 64, "hidden_act": "silu"}
    found = config(fields | {"num_key_value_heads_per_layer": [4, 2], "num_hidden_layers": 2})
    assert found["sizes_of_layers"] == [4, 96, 2, 96]
    assert found["layers_in_names"] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"attention": {"no_op": True}}, r"block_configs\[0\] has no object ffn"),
        ({"attention": {"replace_with_linear": True}, "ffn": {}}, "replace_with_linear=True is not supported"),
        ({"attention": {"n_heads_in_group": 3}, "ffn": {}}, "must have n_heads_in_group, a divisor"),
        ({"attention": {"no_op": True}, "ffn": {"ffn_mult": -1}}, "or else ffn_mult or intermediate_size above 0"),
        ({"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}}, "has no layer with attention"),
    ],
)
def test_a_block_that_cannot_be_computed_is_refused(block, message):
    with pytest.raises(ConfigError, match=message):
        config({"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 1, "block_configs": [block]})

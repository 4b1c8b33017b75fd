"""Checkpoints in fp8 with a scale per block, matrix or output, dense and with experts, are the float model of their
codes."""

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.checkpoint.matrix_reader import FloatReader, MatrixPart
from paged_serve.workers.checkpoint.safetensors_files import Checkpoint
from paged_serve.workers.quantization.block_fp8 import BlockFp8Reader

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.quantized_checkpoints import block_fp8, edit, unstack_experts, write_folder, write_quantized

PROMPT = random_tokens(24)
MODELS = {
    "qwen3-moe": "fp8-16",
    "deepseek-v3": "fp8-16",
    "deepseek-v3.2": "fp8-16",
    "llama4-experts": "fp8-16",
    "glm4-moe-wide": "fp8-128",
    "qwen3": "fp8-128",
}
OF_MATRICES = ("fp8-matrix", "auto-fp8")
OF_COMPRESSED_TENSORS = {
    "ct-fp8-16": "fp8 in blocks of 16x32",
    "ct-fp8-only-16": "fp8 in blocks of 16x32",
    "ct-fp8-only": "fp8 with a scale per output",
    "ct-fp8-only-tensor": "fp8 with a scale per matrix",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each model in each format, and in bfloat16 with the dequantized weights."""
    home, found = tmp_path_factory.mktemp("fp8"), {}
    for model in MODELS:
        write_checkpoint(model, home / model, torch.bfloat16)
        unstack_experts(home / model)
        for name in (MODELS[model], "ct-fp8", *OF_COMPRESSED_TENSORS, *OF_MATRICES):
            found[model, name] = home / f"{model}-{name}"
            write_quantized(home / model, found[model, name], name)
    return found


def logits(folder, **options):
    loop = PagedLoop(ours(folder, "bfloat16", **options))
    return loop.prefill(loop.row(PROMPT))


@pytest.mark.parametrize(("model", "name"), MODELS.items())
def test_a_scale_per_block_is_the_float_model_of_its_codes(model, name, folders, pools):
    folder = folders[model, name]
    for pool in pools:
        for options in ({}, {"quantization": "int8"}):
            expected = logits(rounded(folder), pool=pool, **options)
            assert torch.equal(logits(folder, pool=pool, **options), expected)
        blocks = "128x128" if name == "fp8-128" else "16x32"
        facts = ours(folder, "bfloat16", pool=pool).quantization["quantization"]
        assert (f"matrices fp8 in blocks of {blocks} held as float" in facts) == (pool is None)
        assert f"matrices fp8 in blocks of {blocks}" in facts


@pytest.mark.parametrize("model", ["qwen3", "qwen3-moe"])
@pytest.mark.parametrize(("name", "form"), OF_COMPRESSED_TENSORS.items())
def test_weight_only_compressed_tensors_are_the_float_model_of_their_codes(model, name, form, folders, pools):
    folder = folders[model, name]
    for pool in pools:
        assert torch.equal(logits(folder, pool=pool), logits(rounded(folder), pool=pool))
        facts = ours(folder, "bfloat16", pool=pool).quantization["quantization"]
        assert f"matrices {form}" in facts


def test_blocks_without_scales_are_refused_by_name(folders, tmp_path):
    write_quantized(folders["qwen3", "ct-fp8-16"].with_name("qwen3"), tmp_path / "lacks", "ct-fp8-16")
    edit(tmp_path / "lacks", k_proj__weight_scale=lambda _: None)
    with pytest.raises(ConfigError, match=r"has no tensor model\.layers\.0\.self_attn\.k_proj\.weight_scale, which"):
        ours(tmp_path / "lacks", "bfloat16")


@pytest.mark.parametrize(("model", "name"), [("qwen3", "fp8-matrix"), ("glm4-moe-wide", "auto-fp8")])
def test_a_scale_per_matrix_is_the_float_model_of_its_codes(model, name, folders, pools, tmp_path):
    """Static scales of activations are read and not used: activations are not rounded."""
    folder = folders[model, name]
    for pool in pools:
        for options in ({}, {"quantization": "int8"}):
            expected = logits(rounded(folder), pool=pool, **options)
            assert torch.equal(logits(folder, pool=pool, **options), expected)
        facts = ours(folder, "bfloat16", pool=pool).quantization["quantization"]
        assert "matrices fp8 with a scale per matrix" in facts
    if (pool := pools[-1]) is not None:
        expected = logits(folder, pool=pool)
        for found in on_ranks(2, tmp_path / "rendezvous", lambda group: logits(folder, group=group, pool=pool)):
            assert torch.equal(found, expected)


def rounded(folder):
    """The folder of dequantized weights: their values in float32, which are rounded to bfloat16 when they are read."""
    return folder.with_name(f"{folder.name}-float")


@pytest.mark.parametrize("model", ["glm4-moe-wide", "llama4-experts"])
def test_experts_with_a_scale_per_output_are_the_float_model_of_their_codes(model, folders, make_pool):
    pool, folder = make_pool() or pytest.skip("the kernels are not built"), folders[model, "ct-fp8"]
    assert torch.equal(logits(folder, pool=pool), logits(rounded(folder), pool=pool))
    assert "held as float" not in ours(folder, "bfloat16", pool=pool).quantization["quantization"]


@pytest.mark.parametrize("name", ["fp8-128", "ct-fp8"])
def test_packed_codes_are_kept_in_a_file_that_later_starts_read(name, folders, make_pool, tmp_path, caplog):
    pool, folder = make_pool() or pytest.skip("the kernels are not built"), folders["glm4-moe-wide", name]
    expected = logits(folder, pool=pool)
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert torch.equal(logits(folder, pool=pool, packed_weights_dir=str(tmp_path)), expected)
    assert "packed weights were read from" in caplog.text


def test_llama4_with_a_matrix_for_each_expert_is_the_model_of_its_stacked_tensors(folders, tmp_path, pools):
    write_checkpoint("llama4-experts", tmp_path, torch.bfloat16)
    unstacked = folders["llama4-experts", "ct-fp8"].with_name("llama4-experts")
    for pool in pools:
        assert torch.equal(logits(unstacked, pool=pool), logits(tmp_path, pool=pool))


def test_stacked_codes_are_refused_by_name(tmp_path):
    write_checkpoint("llama4-experts", tmp_path / "plain", torch.bfloat16)
    write_quantized(tmp_path / "plain", tmp_path / "codes", "ct-fp8")
    edit(tmp_path / "codes", experts__gate_up_proj=lambda tensor: tensor.to(torch.float8_e4m3fn))
    with pytest.raises(ConfigError, match=r"1\.feed_forward\.experts\.gate_up_proj has dtype F8_E4M3; supported"):
        ours(tmp_path / "codes", "bfloat16")


@pytest.mark.parametrize(("name", "ranks"), [("fp8-128", 2), ("fp8-128", 4), ("ct-fp8", 4)])
def test_ranks_read_their_parts_of_blocks(name, ranks, folders, make_pool, tmp_path):
    folder = folders["glm4-moe-wide", name]
    expected = logits(folder, pool=make_pool() or pytest.skip("the kernels are not built"))
    for found in on_ranks(ranks, tmp_path / "rendezvous", lambda group: logits(folder, group=group, pool=make_pool())):
        assert torch.equal(found, expected)


def test_values_are_those_of_transformers_and_any_part_is_a_part_of_them(tmp_path):
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    packed, values = block_fp8(128, 128).pack(weight)
    write_folder(tmp_path, {f"some.{ending}": tensor for ending, tensor in packed.items()}, {})
    reader = BlockFp8Reader(Checkpoint(tmp_path), torch.float32)
    whole = reader.stored("some", MatrixPart((256, 384), 0, 0, 256))
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    assert torch.equal(whole, Fp8Dequantize(None)._dequantize_one(packed["weight"], packed["weight_scale_inv"]).float())
    assert torch.equal(whole, values)
    assert torch.equal(reader.stored("some", MatrixPart((256, 384), 0, 100, 130)), whole[100:130])
    assert torch.equal(reader.stored("some", MatrixPart((256, 384), 1, 96, 192)), whole[:, 96:192])
    with pytest.raises(ConfigError, match=r"dtype F8_E4M3; supported: BF16"):
        FloatReader(Checkpoint(tmp_path), torch.float32).read("some", MatrixPart((256, 384), 0, 0, 256))


def test_a_code_that_is_no_number_is_refused_by_name(tmp_path):
    packed, _ = block_fp8(128, 128).pack(torch.randn(256, 384, generator=torch.Generator().manual_seed(0)))
    packed["weight"].view(torch.uint8)[200, 300] = 0x7F
    write_folder(tmp_path, {f"some.{ending}": tensor for ending, tensor in packed.items()}, {})
    with pytest.raises(ConfigError, match=r"tensor some\.weight holds NaN or infinity \(1 such numbers"):
        BlockFp8Reader(Checkpoint(tmp_path), torch.bfloat16).read("some", MatrixPart((256, 384), 0, 0, 256))


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize(("name", "part"), [("fp8-128", "q_proj"), ("ct-fp8", "down_proj")])
def test_a_model_with_a_code_that_is_no_number_is_refused_by_name(name, part, code, folders, tmp_path, pools):
    write_quantized(folders["glm4-moe-wide", name].with_name("glm4-moe-wide"), tmp_path / "changed", name)

    def change(codes):
        changed = codes.clone()
        changed.view(torch.uint8)[1, 2] = code
        return changed

    edit(tmp_path / "changed", **{f"__{part}__weight": change})
    for pool in pools:
        with pytest.raises(ConfigError, match=rf"tensor model.layers.\d.*{part}.weight holds NaN or infinity"):
            ours(tmp_path / "changed", "bfloat16", pool=pool)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"weight_block_size": [0, 128]}, r"fp8 with weight_block_size=\(0, 128\)"),
        ({"weight_block_size": [128, 1 << 70]}, "settings of fp8 cannot be used"),
        ({"weight_block_size": [128]}, "settings of fp8 cannot be used"),
        ({"activation_scheme": "other"}, "fp8 with activation_scheme='other' is not supported; supported: .*per block"),
        ({"fmt": "e5m2"}, "fp8 with fmt='e5m2'"),
        ({"weight_block_size": [64, 64]}, r"weight_scale_inv has shape \[1, 1\], but config.json asks for"),
    ],
)
def test_other_settings_are_refused_by_name(config, complaint, folders, tmp_path):
    write_quantized(folders["qwen3", "fp8-128"].with_name("qwen3"), tmp_path / "changed", "fp8-128")
    edit(tmp_path / "changed", config)
    with pytest.raises(ConfigError, match=complaint):
        ours(tmp_path / "changed")

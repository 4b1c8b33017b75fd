"""A quantized checkpoint that is not supported is refused with the name of the field and the supported value."""

import shutil

import pytest
import torch

from paged_serve.protocol.errors import ConfigError

from ..tiny_models.checkpoints import ours, write_checkpoint
from ..tiny_models.quantized_checkpoints import edit, write_quantized


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_checkpoint("qwen2", folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "quantized"


def group(**changes):
    """A config group of compressed-tensors: W4A16 with changed fields."""
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    fields = {"targets": ["Linear"], "weights": weights, **changes}
    return {"config_groups": {"group_0": fields}, "format": fields.pop("stored_as", "pack-quantized")}


INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
STATIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}


@pytest.mark.parametrize(
    ("name", "config", "complaint"),
    [
        (
            "gptq",
            {"quant_method": "hqq"},
            r"quantized by 'hqq' are not supported; supported",
        ),
        ("gptq", {"quant_method": None}, "quantization_config has no quant_method, as in files of MLX"),
        ("awq", {"version": None, "format": "gemv"}, "awq with version='gemv'"),
        ("ct-w4a16", group(weights=FP8, stored_as="nvfp4-pack-quantized"), "symmetric weights of 8 bits in group_0"),
        ("ct-w4a16", group(stored_as="mxfp4-pack-quantized"), "weights that are not static floats in group_0"),
        (
            "ct-w4a16",
            group(weights=FP8 | {"num_bits": 4, "group_size": 32}, stored_as="nvfp4-pack-quantized"),
            "weights of 'nvfp4-pack-quantized' per channel of 32 in group_0",
        ),
        ("gptq", {"bits": 3}, "gptq with bits=3 is not supported"),
        ("gptq", {"bits": "four"}, r"settings of gptq cannot be used: Expected `int`, got `str`"),
        ("gptq", {"checkpoint_format": "marlin"}, "gptq with checkpoint_format='marlin'"),
        ("gptq", {"dynamic": {"+:.*down.*": {"bits": 8}}}, r"separate settings for '\+:\.\*down\.\*'"),
        ("gptq", {"lm_head": True}, "a quantized lm_head"),
        ("gptq", {"group_size": 16}, r"q_proj\.scales has 2 groups for 64 inputs, which are not groups of 16"),
        ("awq", {"bits": 3}, "awq with bits=3"),
        ("awq", {"version": "gemv"}, "awq with version='gemv'"),
        ("awq", {"zero_point": False}, "zero_point=false"),
        ("ct-w4a16", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity format 'sparse-24-bitmask'"),
        ("ct-w4a16", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        (
            "ct-w4a16",
            group(weights=FP8),
            "weights that are not static integers",
        ),
        (
            "ct-w8a8",
            group(weights=INT8 | {"strategy": "channel"}, stored_as="int-quantized"),
            "no input_activations with format 'int-quantized'",
        ),
        (
            "ct-fp8",
            group(weights=FP8, input_activations=STATIC | {"strategy": "group"}, stored_as="float-quantized"),
            "static activations per group in group_0",
        ),
        (
            "ct-fp8",
            group(weights=INT8 | {"strategy": "block"}, stored_as="int-quantized"),
            "symmetric weights of 8 bits per block in group_0",
        ),
        ("ct-fp8", group(weights=FP8 | {"strategy": "block"}, stored_as="float-quantized"), "block_structure=None"),
        (
            "ct-fp8",
            group(weights=FP8 | {"strategy": "block", "block_structure": [0, 128]}, stored_as="float-quantized"),
            r"block_structure=\(0, 128\) in group_0",
        ),
        (
            "ct-fp8",
            group(
                weights=FP8 | {"strategy": "block", "block_structure": [128, 128]},
                input_activations=STATIC,
                stored_as="float-quantized",
            ),
            "static activations per tensor in group_0",
        ),
        ("ct-fp8", group(weights=INT8, stored_as="float-quantized"), "weights that are not static floats"),
        ("ct-w4a16", group(stored_as="marlin-24"), "format 'marlin-24' in group_0"),
        ("ct-w4a16", group(weights=INT8 | {"num_bits": 2, "strategy": "group"}), "num_bits=2 in group_0"),
        ("ct-w4a16", group(weights=INT8 | {"strategy": "tensor"}), "weight strategy 'tensor' in group_0"),
        ("ct-w4a16", group(output_activations=INT8), "output_activations in group_0"),
        ("ct-w4a16", group(input_activations=INT8), "input_activations with format 'pack-quantized'"),
        (
            "ct-w8a8",
            group(
                weights=INT8 | {"strategy": "channel"},
                input_activations=INT8 | {"strategy": "token", "dynamic": False},
                stored_as="int-quantized",
            ),
            "static activations per token in group_0",
        ),
        (
            "ct-w8a8",
            group(
                weights=INT8 | {"strategy": "channel"},
                input_activations=INT8 | {"symmetric": False, "strategy": "token", "dynamic": True},
                stored_as="int-quantized",
            ),
            "asymmetric int8 activations in group_0",
        ),
        (
            "ct-w8a8",
            group(weights=INT8 | {"strategy": "group"}, stored_as="int-quantized"),
            "weights of 8 bits per group",
        ),
        ("ct-w8a8", {"ignore": ["re:lm_head("]}, r"compressed-tensors with the expression 're:lm_head\(' \(missing \)"),
        ("ct-w4a16", group(targets=["re:*"]), r"the expression 're:\*' \(nothing to repeat"),
        ("ct-w8a8", {"config_groups": 7}, "the settings of compressed-tensors cannot be used"),
        ("ct-w4a16", {"ignore": []}, r"no tensor lm_head\.weight_scale|no tensor lm_head\.weight_shape"),
    ],
)
def test_an_unsupported_quantization_is_refused_by_name(name, config, complaint, source, folder):
    write_quantized(source, folder, name)
    edit(folder, config)
    with pytest.raises(ConfigError, match=complaint):
        ours(folder)


@pytest.mark.parametrize(
    ("name", "ending", "change", "complaint"),
    [
        ("gptq", "qweight", lambda _: None, r"no tensor model\.layers\.0\.self_attn\.q_proj\.weight"),
        ("gptq", "qzeros", lambda _: None, r"no tensor .*q_proj\.qzeros"),
        ("gptq", "qweight", torch.Tensor.float, r"q_proj\.qweight has dtype F32; supported: I32"),
        ("gptq", "qzeros", lambda zeros: zeros[:, 1:], r"q_proj\.qzeros has shape \[2, 7\], but .* asks for \[2, 8\]"),
        ("gptq-desc-act", "g_idx", torch.zeros_like, r"g_idx does not divide 64 inputs into 2 equal groups"),
        ("awq", "scales", lambda scales: scales[:1], r"q_proj\.scales has 1 groups for 64 inputs"),
        (
            "ct-w4a16",
            "weight_shape",
            lambda shape: shape + 8,
            r"weight_shape is \[72, 72\], but .* \[64, 64\]",
        ),
        ("ct-w8a8", "q_proj__weight", lambda codes: codes.short(), r"q_proj\.weight has dtype I16"),
        ("ct-w8a8", "weight_scale", lambda scale: scale[1:], r"weight_scale has shape \[63, 1\]"),
    ],
)
def test_tensors_that_do_not_fit_the_configuration_are_named(name, ending, change, complaint, source, folder):
    write_quantized(source, folder, name)
    edit(folder, **{ending: change})
    with pytest.raises(ConfigError, match=complaint):
        ours(folder)


def test_int8_weights_without_a_configuration_are_not_taken_for_floats(source, folder):
    write_quantized(source, folder, "ct-w8a8")
    shutil.copy(source / "config.json", folder)
    with pytest.raises(ConfigError, match=r"q_proj\.weight has dtype I8; supported: BF16, F16, F32, F64"):
        ours(folder)


def test_fp8_is_refused_on_the_cpu_kernels(source, make_pool):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    with pytest.raises(ConfigError, match=r"quantization=fp8 .*: the CPU kernels do not .*use quantization=int8"):
        ours(source, "bfloat16", pool=make_pool(), quantization="fp8")


def test_a_requested_quantization_must_match_the_checkpoint(source, folder):
    write_quantized(source, folder, "awq")
    ours(folder, quantization="awq")
    with pytest.raises(ConfigError, match=r"quantization=int8, but .* is quantized by awq already"):
        ours(folder, quantization="int8")
    with pytest.raises(ConfigError, match=r"quantization=gptq, but .* is not quantized"):
        ours(source, quantization="gptq")

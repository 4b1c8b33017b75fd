"""Checkpoints of NVIDIA's ModelOpt, dense and with experts, are the float model of their codes."""

import json

import pytest
import torch

from paged_serve.protocol.errors import ConfigError

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.modelopt_checkpoints import MODELOPT, modelopt_config, own_file
from ..tiny_models.quantized_checkpoints import edit, write_quantized

PROMPT = random_tokens(24)
FORMS = {
    "FP8": "fp8 with a scale per matrix",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8 with a scale per output",
    "FP8_PB_WO": "fp8 in blocks of 128x128",
}
CASES = [("qwen3", "FP8"), ("qwen3-moe", "FP8"), ("glm4-moe-wide", "FP8_PB_WO"), ("qwen3", "FP8_PER_CHANNEL_PER_TOKEN")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each model in each format, and in bfloat16 with the dequantized weights."""
    home, found = tmp_path_factory.mktemp("modelopt"), {}
    for model, name in CASES:
        write_checkpoint(model, home / model, torch.bfloat16)
        found[model, name] = home / f"{model}-{name}"
        write_quantized(home / model, found[model, name], MODELOPT[name])
    return found


@pytest.fixture
def folder(folders, tmp_path):
    """A dense model in fp8 with a scale per matrix, to be changed."""
    write_quantized(folders["qwen3", "FP8"].with_name("qwen3"), tmp_path / "changed", MODELOPT["FP8"])
    return tmp_path / "changed"


def logits(folder, **options):
    loop = PagedLoop(ours(folder, "bfloat16", **options))
    return loop.prefill(loop.row(PROMPT))


def rounded(folder):
    """The folder of dequantized weights: their values in float32, which are rounded to bfloat16 when they are read."""
    return folder.with_name(f"{folder.name}-float")


@pytest.mark.parametrize(("model", "name"), CASES)
def test_fp8_is_the_float_model_of_its_codes(model, name, folders, pools):
    folder = folders[model, name]
    for pool in pools:
        for options in ({}, {"quantization": "int8"}):
            expected = logits(rounded(folder), pool=pool, **options)
            assert torch.equal(logits(folder, pool=pool, **options), expected)
        facts = ours(folder, "bfloat16", pool=pool, quantization="modelopt").quantization["quantization"]
        assert f"matrices {FORMS[name]}" in facts
        assert (f"{FORMS[name]} held as float" in facts) == (pool is None)


@pytest.mark.parametrize(("model", "name"), [("glm4-moe-wide", "FP8_PB_WO"), ("qwen3", "FP8")])
def test_two_ranks_have_the_bits_of_one(model, name, folders, make_pool, tmp_path):
    expected = logits(folders[model, name], pool=make_pool() or pytest.skip("the kernels are not built"))
    work = lambda group: logits(folders[model, name], group=group, pool=make_pool())  # noqa: E731
    for found in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(found, expected)


def move_settings(folder, **fields):
    """Move the settings from config.json to a file of their own, with changed `fields`, as in old checkpoints."""
    config = json.loads((folder / "config.json").read_text())
    settings = own_file(config.pop("quantization_config"))
    settings["quantization"] |= fields.pop("quantization", {})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text(json.dumps(settings | fields))


def test_settings_may_be_in_a_file_of_their_own(folder):
    expected = logits(rounded(folder))
    move_settings(folder)
    assert torch.equal(logits(folder), expected)
    move = json.loads((folder / "hf_quant_config.json").read_text())
    (folder / "hf_quant_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt_fp4", **move}
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(folder), expected)


def test_packed_weights_depend_on_the_file_of_settings(folder, tmp_path, make_pool):
    """A change of this file alone makes new ones: they would be those of other settings."""
    pool = make_pool() or pytest.skip("the kernels are not built")
    move_settings(folder)
    logits(folder, pool=pool, packed_weights_dir=str(tmp_path / "packed"))
    (folder / "hf_quant_config.json").write_text((folder / "hf_quant_config.json").read_text() + " ")
    logits(folder, pool=pool, packed_weights_dir=str(tmp_path / "packed"))
    assert len(list((tmp_path / "packed").glob("*.packed"))) == 2


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            modelopt_config("W4A8_AWQ"),
            r"config\.json: modelopt with quant_algo='W4A8_AWQ' is not supported; supported: ",
        ),
        (modelopt_config("MXFP8"), "quant_algo='MXFP8'"),
        (
            modelopt_config(
                "MIXED_PRECISION", quantized_layers={"a.b": {"quant_algo": "FP8"}, "a.c": {"quant_algo": "W8A16"}}
            ),
            r"quant_algo='W8A16' of a\.c",
        ),
        ({"quant_algo": 7}, "the settings of modelopt cannot be used: Expected `str`"),
    ],
)
def test_other_settings_are_refused_by_name(config, complaint, folder):
    edit(folder, config)
    with pytest.raises(ConfigError, match=complaint):
        ours(folder)


def test_a_file_of_settings_of_another_tool_is_refused_by_name(folder):
    move_settings(folder, producer={"name": "other"})
    with pytest.raises(ConfigError, match=r"hf_quant_config\.json: weights quantized by 'other' are not supported"):
        ours(folder)


def test_a_matrix_of_codes_without_scales_is_refused_by_name(folder):
    edit(folder, q_proj__weight_scale=lambda _: None)
    with pytest.raises(ConfigError, match=r"q_proj\.weight has dtype F8_E4M3; supported: "):
        ours(folder)

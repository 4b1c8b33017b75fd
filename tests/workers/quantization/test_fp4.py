"""Checkpoints in NVFP4 and MXFP4, dense and with experts, by ModelOpt and llm-compressor.

On torch they are the float model of their codes, bit for bit. The CPU kernels keep the codes, and add in groups.
"""

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.checkpoint.matrix_reader import MatrixPart
from paged_serve.workers.checkpoint.safetensors_files import Checkpoint
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.quantization.words.nvfp4 import read_modelopt_nvfp4

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.modelopt_checkpoints import E2M1, FP4
from ..tiny_models.quantized_checkpoints import edit, write_folder, write_quantized

PROMPT = random_tokens(24)
CASES = [("llama-even", name) for name in FP4] + [("qwen3-moe", "NVFP4"), ("qwen3-moe", "ct-nvfp4")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each model in each format, and in bfloat16 with the dequantized weights."""
    home, found = tmp_path_factory.mktemp("fp4"), {}
    for model, name in CASES:
        write_checkpoint(model, home / model, torch.bfloat16)
        found[model, name] = home / f"{model}-{name}"
        write_quantized(home / model, found[model, name], FP4[name])
    return found


def logits(folder, dtype="bfloat16", chunk=1000, **options):
    loop = PagedLoop(ours(folder, dtype, **options))
    return loop.prefill(loop.row(PROMPT), chunk)


def test_parts_of_latent_attention_are_dequantized(tmp_path, pools):
    """On torch, and on the kernels, which read the two halves of a matrix for each head."""
    write_checkpoint("deepseek-v3", tmp_path / "float", torch.bfloat16, {"q_lora_rank": 48})
    write_quantized(tmp_path / "float", tmp_path / "packed", FP4["NVFP4"])
    assert torch.equal(logits(tmp_path / "packed"), logits(rounded(tmp_path / "packed")))
    for pool in pools:
        options = {"quantization": "int8", "pool": pool}
        assert torch.equal(logits(tmp_path / "packed", **options), logits(rounded(tmp_path / "packed"), **options))


def rounded(folder):
    """The folder of dequantized weights: their values in float32, which are rounded when they are read."""
    return folder.with_name(f"{folder.name}-float")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("model", "name"), CASES)
def test_on_torch_it_is_the_float_model_of_its_codes(model, name, dtype, folders):
    assert torch.equal(logits(folders[model, name], dtype), logits(rounded(folders[model, name]), dtype))


@pytest.mark.parametrize(("model", "name"), CASES)
def test_the_kernels_keep_the_codes_and_differ_by_the_order_of_sums(model, name, folders, make_pool):
    pool, folder = make_pool() or pytest.skip("the kernels are not built"), folders[model, name]
    exact = logits(rounded(folder), "float32").double()
    on_kernels, on_floats = (logits(each, pool=pool).double() for each in (folder, rounded(folder)))
    assert (on_kernels - exact).norm() < 1.2 * (on_floats - exact).norm()
    facts = ours(folder, "bfloat16", pool=pool).quantization["quantization"]
    assert f"matrices {'mxfp4' if 'mxfp4' in name else 'nvfp4'}" in facts
    assert "held as float" not in facts


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"dtype": "float32"}, {"quantization": "int8"}], ids=str)
def test_without_a_product_of_its_codes_it_is_the_float_model(options, folders, pools):
    folder = folders["qwen3-moe", "NVFP4"]
    for pool in pools:
        assert torch.equal(logits(folder, pool=pool, **options), logits(rounded(folder), pool=pool, **options))


DIVIDED = [("llama-even", "NVFP4"), ("llama-even", "ct-mxfp4"), ("qwen3-moe", "ct-nvfp4")]


@pytest.mark.parametrize(("model", "name"), DIVIDED)
def test_chunks_ranks_and_instruction_sets_have_the_same_bits(model, name, folders, tmp_path):
    isas, folder = cpu.runnable_isas() or pytest.skip("the kernels are not built"), folders[model, name]
    pools = [cpu.Pool(cpu.load_library(isas[rank % len(isas)]), [-1], summation="dot") for rank in range(2)]
    expected = logits(folder, pool=pools[0])
    for isa in isas[1:]:
        pools.append(cpu.Pool(cpu.load_library(isa), [-1, -1], summation="dot"))
        assert torch.equal(logits(folder, pool=pools[-1], chunk=7), expected), isa
    work = lambda group: logits(folder, group=group, pool=pools[group.rank])  # noqa: E731
    for found in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(found, expected)
    for pool in pools:
        pool.close()


def test_packed_codes_are_kept_in_a_file_that_later_starts_read(folders, make_pool, tmp_path, caplog):
    pool, folder = make_pool() or pytest.skip("the kernels are not built"), folders["qwen3-moe", "NVFP4"]
    expected = logits(folder, pool=pool)
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert torch.equal(logits(folder, pool=pool, packed_weights_dir=str(tmp_path)), expected)
    assert "packed weights were read from" in caplog.text


@pytest.fixture
def folder(folders, request, tmp_path):
    """A dense model in the format of the test, to be changed."""
    source = folders["llama-even", "NVFP4"].with_name("llama-even")
    write_quantized(source, tmp_path / "changed", FP4[request.param])
    return tmp_path / "changed"


def in_format(name):
    return pytest.mark.parametrize("folder", [name], indirect=True)


@in_format("NVFP4")
def test_a_quantized_output_head_is_read_too(folder, make_pool):
    stored = load_file(folder / "model.safetensors")
    packed, meant = FP4["NVFP4"].pack(stored.pop("lm_head.weight").float())
    save_file(stored | {f"lm_head.{kind}": part for kind, part in packed.items()}, folder / "model.safetensors")
    floats = load_file(rounded(folder) / "model.safetensors") | {"lm_head.weight": meant}
    save_file(floats, rounded(folder) / "model.safetensors")
    assert torch.equal(logits(folder), logits(rounded(folder)))
    assert "19 matrices nvfp4" in str(ours(folder, "bfloat16", pool=make_pool()).quantization)


@in_format("NVFP4")
def test_a_matrix_of_zeros_may_have_a_scale_of_zero(folder, pools):
    edit(folder, v_proj__weight_scale_2=torch.zeros_like)
    stored = load_file(rounded(folder) / "model.safetensors")
    zeros = {name: torch.zeros_like(tensor) for name, tensor in stored.items() if "v_proj" in name}
    save_file(stored | zeros, rounded(folder) / "model.safetensors")
    assert torch.equal(logits(folder), logits(rounded(folder)))
    for pool in pools:
        assert bool(logits(folder, pool=pool).isfinite().all())


@in_format("ct-mxfp4")
def test_scales_in_mxfp4_that_no_unit_holds_are_dequantized(folder, make_pool):
    edit(folder, down_proj__weight_scale=with_first(20))
    floats = load_file(rounded(folder) / "model.safetensors")
    for name, pairs in load_file(folder / "model.safetensors").items():
        if name.endswith("down_proj.weight_packed"):
            codes = torch.stack([pairs[0, :16] & 15, pairs[0, :16] >> 4], 1).flatten()
            floats[name.removesuffix("_packed")][0, :32] = torch.ldexp(E2M1[codes.int()], torch.tensor(20 - 127))
    save_file(floats, rounded(folder) / "model.safetensors")
    assert torch.equal(logits(folder), logits(rounded(folder)))
    if (pool := make_pool()) is not None:
        facts = ours(folder, "bfloat16", pool=pool).quantization["quantization"]
        assert facts == "7 matrices float, 15 matrices mxfp4"


def with_first(value):
    def change(tensor):
        changed = tensor.clone()
        changed.view(torch.uint8).flatten()[0] = value
        return changed

    return change


@pytest.mark.parametrize(
    ("folder", "ending", "change", "complaint"),
    [
        ("NVFP4", "q_proj__weight_scale", with_first(0x7F), r"q_proj\.weight \(its scales\) holds NaN"),
        (
            "ct-nvfp4",
            "q_proj__weight_global_scale",
            torch.zeros_like,
            r"q_proj\.weight \(its scales\) holds NaN or inf",
        ),
        ("ct-mxfp4", "q_proj__weight_scale", with_first(255), r"q_proj\.weight_scale holds a scale that is not finite"),
        ("NVFP4", "q_proj__weight_scale_2", lambda _: None, r"q_proj\.weight has shape \[64, 32\], but .* \[64, 64\]"),
        ("NVFP4", "q_proj__weight_scale", lambda _: None, r"no tensor .*q_proj\.weight_scale, which"),
        (
            "NVFP4",
            "q_proj__weight",
            lambda codes: codes[:, 1:],
            r"q_proj\.weight has shape \[64, 31\], but .* \[64, 32\]",
        ),
        (
            "NVFP4",
            "q_proj__weight_scale",
            torch.Tensor.float,
            r"q_proj\.weight_scale has dtype F32; supported: F8_E4M3",
        ),
        ("ct-nvfp4", "q_proj__weight_global_scale", lambda x: x.repeat(2), r"weight_global_scale has shape \[2\], but"),
    ],
    indirect=["folder"],
)
def test_damaged_tensors_are_named(folder, ending, change, complaint):
    edit(folder, **{ending: change})
    with pytest.raises(ConfigError, match=complaint):
        ours(folder, "bfloat16")


def test_any_part_of_whole_groups_is_a_part_of_the_whole(tmp_path):
    packed, values = FP4["NVFP4"].pack(torch.randn(24, 96, generator=torch.Generator().manual_seed(0)))
    write_folder(tmp_path, {f"some.{ending}": tensor for ending, tensor in packed.items()}, {})
    checkpoint = Checkpoint(tmp_path)
    for part, expected in (
        (MatrixPart((24, 96), 0, 0, 24), values),
        (MatrixPart((24, 96), 0, 5, 13), values[5:13]),
        (MatrixPart((24, 96), 1, 48, 80), values[:, 48:80]),
    ):
        assert torch.equal(read_modelopt_nvfp4(checkpoint, "some", part).dequantized(), expected)
    with pytest.raises(ConfigError, match=r"some is quantized in groups of 16 inputs, but a rank's share is inputs 24"):
        read_modelopt_nvfp4(checkpoint, "some", MatrixPart((24, 96), 1, 24, 48))
    with pytest.raises(ConfigError, match=r"some\.weight has 40 inputs, which are not a multiple of 16"):
        read_modelopt_nvfp4(checkpoint, "some", MatrixPart((24, 40), 0, 0, 24))

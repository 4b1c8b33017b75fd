"""Experts in MXFP4 are multiplied in their own blocks by the CPU kernels; plain torch dequantizes them, exactly."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.kernels.cpu import library as cpu

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, reference

PROMPT = random_tokens(24)


def random(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """gpt-oss in MXFP4 (also with one scale far from the others), and with dequantized weights."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    home, generator = tmp_path_factory.mktemp("mxfp4"), random(0)
    found = {kind: home / kind for kind in ("packed", "far", "dequantized", "far-dequantized")}
    for path in found.values():
        reference("gpt-oss", path, torch.bfloat16)
    tensors = load_file(found["packed"] / "model.safetensors")
    contents = {kind: dict(tensors) for kind in found}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors[name].shape
        blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
        blocks[0, 0, 0] = 0
        scales = torch.randint(121, 127, blocks.shape[:3], dtype=torch.uint8, generator=generator)
        for prefix, scale in (("", 0), ("far-", 80)):
            scales[0, 0, 0] = scale
            contents[prefix.rstrip("-") or "packed"] |= {f"{name}_blocks": blocks, f"{name}_scales": scales.clone()}
            contents[f"{prefix}dequantized"][name] = convert_moe_packed_tensors(blocks, scales).contiguous()
    for kind, path in found.items():
        if kind in ("packed", "far"):
            for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
                del contents[kind][name]
        save_file(contents[kind], path / "model.safetensors")
        config = json.loads((path / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
        (path / "config.json").write_text(json.dumps(config))
    return found


def logits(folder, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT))


@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"dtype": "float16"}], ids=str)
def test_without_a_product_of_its_blocks_it_is_dequantized_as_by_transformers(options, folders, pools):
    for pool in pools if options else [None]:
        expected = logits(folders["dequantized"], pool=pool, **options)
        assert torch.equal(logits(folders["packed"], pool=pool, **options), expected)


def test_the_kernels_keep_the_blocks_and_differ_by_the_order_of_sums(folders, make_pool):
    pool = make_pool() or pytest.skip("the kernels are not built")
    whole, small = (ours(folders[kind], pool=pool) for kind in ("dequantized", "packed"))
    assert "matrices mxfp4" in small.quantization["quantization"]
    assert small.weights_bytes < 0.7 * whole.weights_bytes
    found, expected = (logits(folders[kind], pool=pool).double() for kind in ("packed", "dequantized"))
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_scales_that_no_unit_holds_exactly_are_dequantized(folders, make_pool):
    pool = make_pool() or pytest.skip("the kernels are not built")
    assert torch.equal(logits(folders["far"], pool=pool), logits(folders["far-dequantized"], pool=pool))
    assert "mxfp4" not in ours(folders["far"], pool=pool).quantization.get("quantization", "")


def test_a_scale_that_is_not_finite_is_refused(folders, tmp_path):
    tensors = load_file(folders["packed"] / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    tensors[name][:, 3, 1] = 255
    reference("gpt-oss", tmp_path, torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"tensor {name} holds a scale that is not finite"):
        ours(tmp_path)


def test_chunks_ranks_and_instruction_sets_have_the_same_bits(folders, tmp_path):
    isas = cpu.runnable_isas() or pytest.skip("the kernels are not built")
    pools = [cpu.Pool(cpu.load_library(isas[rank % len(isas)]), [-1], summation="dot") for rank in range(2)]
    expected = logits(folders["packed"], pool=pools[0])
    for isa in isas[1:]:
        pools.append(cpu.Pool(cpu.load_library(isa), [-1, -1], summation="dot"))
        loop = PagedLoop(ours(folders["packed"], pool=pools[-1]))
        assert torch.equal(loop.prefill(loop.row(PROMPT), chunk=7), expected), isa
    work = lambda group: logits(folders["packed"], group=group, pool=pools[group.rank])  # noqa: E731
    for found in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(found, expected)
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("far", [0, 80], ids=["near", "far"])
def test_a_value_beyond_float16_is_refused_by_name(far, folders, tmp_path, make_pool):
    tensors = load_file(folders["packed"] / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    tensors[name] = tensors[name].clone().fill_(145)  # 2^18
    if far:
        tensors[name][0, 0, 0] = far
    reference("gpt-oss", tmp_path, torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"down_proj.weight holds .* beyond the range of float16"):
        ours(tmp_path, "float16", pool=make_pool() or pytest.skip("the kernels are not built"))

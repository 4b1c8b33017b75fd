"""Block formats: sizes and values are those of the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from paged_serve.protocol.gguf.block_formats import BLOCK_FORMATS, DEQUANTIZED_FORMATS
from paged_serve.workers.checkpoint.blocks.dequantize import DEQUANTIZERS
from paged_serve.workers.checkpoint.gguf.names import TENSOR_LAYOUTS

from ...gguf_names import package_name_of


def test_each_type_has_the_number_name_and_size_of_the_package():
    for number, block in BLOCK_FORMATS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (block.name, block.num_elements, block.num_bytes)


@pytest.mark.parametrize("name", DEQUANTIZED_FORMATS)
def test_values_are_those_of_the_package_for_any_bits(name):
    kind = gguf.GGMLQuantizationType[name]
    blocks = np.random.default_rng(5).integers(0, 256, (5000, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(blocks, kind)
    found = DEQUANTIZERS[name](torch.from_numpy(blocks)).numpy()
    are_numbers = ~np.isnan(expected)  # bits of a NaN are its payload, and a NaN is refused
    assert found.shape == expected.shape
    assert np.array_equal(np.isnan(found), ~are_numbers)
    assert are_numbers.mean() > 0.9
    assert np.array_equal(found.view(np.uint32)[are_numbers], expected.view(np.uint32)[are_numbers])


def test_no_blocks_have_no_values():
    for name, dequantize in DEQUANTIZERS.items():
        size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        assert dequantize(torch.empty((0, size[1]), dtype=torch.uint8)).numel() == 0


@pytest.mark.parametrize("architecture", TENSOR_LAYOUTS)
def test_each_tensor_of_an_architecture_has_the_name_that_the_converter_gives_it(architecture):
    layout = TENSOR_LAYOUTS[architecture]
    named = package_name_of(architecture, 40)
    for stored in (*layout.whole, *(f"blk.37.{part}" for part in layout.in_layers)):
        if stored != "output" or architecture != "gemma":
            whole = stored if stored.endswith((".weight", ".bias")) else f"{stored}.weight"
            name = layout.name(whole)
            assert name is not None
            found = named(name)
            # None: of other versions of the converter, or with another name while it converts.
            assert found in (whole, whole.removesuffix(".weight"), whole.removesuffix(".bias"), None)
    for stored in layout.experts:
        several = layout.names_of_experts(f"blk.37.{stored}.weight")
        assert several
        whole = several[0].replace(".{}", "").replace("gate_proj", "gate_up_proj" if several[1:] else "gate_proj")
        assert named(whole) in (f"blk.37.{stored}.weight", None)
    assert layout.name("blk.1.ffn_gate_exps.weight") is None
    assert not layout.names_of_experts("blk.1.ffn_gate.weight")
    assert layout.name("token_embd.scale") is None

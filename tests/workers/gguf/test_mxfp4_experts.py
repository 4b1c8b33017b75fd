"""Experts of GGUF files in MXFP4: their codes and scales are kept, and have the values of the gguf package."""

import gguf
import pytest
import torch

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.workers.checkpoint.gguf.gguf_checkpoint import GgufCheckpoint
from paged_serve.workers.checkpoint.matrix_reader import FloatReader, MatrixPart
from paged_serve.workers.quantization.gguf import GgufReader

from ...gguf_files import Type, write_gguf
from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens
from .models import write_model

PROMPT = random_tokens(40)


def logits(folder, chunk=1 << 30, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT), chunk)


@pytest.fixture(scope="module")
def mxfp4_file(tmp_path_factory):
    home = tmp_path_factory.mktemp("mxfp4")
    kind = lambda name, tensor: Type.MXFP4 if ".experts." in name else Type.BF16  # noqa: E731
    return write_gguf(write_model("gpt-oss", home / "folder", torch.bfloat16), home / "model.gguf", kind)


def test_experts_in_mxfp4_keep_their_codes_and_scales(mxfp4_file, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    made = make_folder(mxfp4_file, tmp_path / "made")
    model = ours(made, pool=pool)
    assert model.quantization["quantization"] == "16 matrices float, 54 matrices mxfp4"
    expected = logits(made, pool=pool)
    assert torch.equal(logits(made, 7, pool=pool), expected)
    for ranks in (2, 4):
        share = lambda group: logits(made, group=group, pool=make_pool())  # noqa: E731
        for found in on_ranks(ranks, tmp_path / f"rendezvous-{ranks}", share):
            assert torch.equal(found, expected)


def test_codes_and_scales_in_mxfp4_are_the_values_that_the_package_dequantizes(mxfp4_file, tmp_path):
    checkpoint = GgufCheckpoint(make_folder(mxfp4_file, tmp_path / "made"), torch.bfloat16)
    reader = GgufReader(checkpoint, FloatReader(checkpoint, torch.bfloat16))
    names = [name for name in checkpoint.entries if checkpoint.format_of(name) == "MXFP4"]
    assert len(names) == 54
    for name in names[::9]:
        raw = checkpoint.raw_blocks(name)
        weight = reader.read(name.removesuffix(".weight"), MatrixPart((len(raw), 32 * raw.shape[1]), 0, 0, len(raw)))
        expected = gguf.dequantize(raw.flatten(1).numpy(), Type.MXFP4)
        assert weight.is_e2m1
        assert torch.equal(weight.dequantized(), torch.from_numpy(expected))


@pytest.mark.parametrize("exponent", [40, 252], ids=["far", "not finite"])
def test_a_layer_in_mxfp4_whose_scales_no_unit_holds_is_dequantized(exponent, mxfp4_file, tmp_path):
    """A block of zeros has any scale."""
    checkpoint = GgufCheckpoint(make_folder(mxfp4_file, tmp_path / "made"), torch.bfloat16)
    reader = GgufReader(checkpoint, FloatReader(checkpoint, torch.bfloat16))
    name = next(name for name in checkpoint.entries if checkpoint.format_of(name) == "MXFP4")
    raw, layer = checkpoint.raw_blocks(name), name.removesuffix(".weight")
    raw[0, 0, 0], raw[0, 0, 1:] = exponent, 0x80
    assert reader._are_scales_near(layer)
    raw[0, 0, 1] = 0x01
    assert not GgufReader(checkpoint, reader.floats)._are_scales_near(layer)

"""GGUF files in NVFP4, with a scale of each matrix beside its blocks."""

from dataclasses import replace

import gguf
import pytest
import torch

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.checkpoint.gguf.gguf_checkpoint import GgufCheckpoint
from paged_serve.workers.checkpoint.matrix_reader import FloatReader, MatrixPart
from paged_serve.workers.kernels.cpu.packing import scales_in_units
from paged_serve.workers.quantization.gguf import GgufReader

from ...gguf_files import Type, write_gguf
from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens
from .models import write_model

MODELS = "llama", "qwen3-moe"


def logits(folder, chunk=1 << 30, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(random_tokens(40)), chunk)


def kind_of(name, tensor):
    fits = tensor.dim() > 1 and tensor.shape[-1] % 64 == 0 and "embed" not in name and "lm_head" not in name
    return Type.NVFP4 if fits else Type.BF16


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    home = tmp_path_factory.mktemp("nvfp4")
    return {
        name: write_gguf(write_model(name, home / name, torch.bfloat16), home / f"{name}.gguf", kind_of)
        for name in MODELS
    }


def reader_of(file, folder):
    checkpoint = GgufCheckpoint(make_folder(file, folder), torch.float32)
    return checkpoint, GgufReader(checkpoint, FloatReader(checkpoint, torch.float32))


@pytest.mark.parametrize("model", MODELS)
def test_codes_and_scales_are_the_values_that_the_package_dequantizes(model, files, tmp_path):
    """Each times the scale of its matrix; parts of whole groups are parts of the whole."""
    checkpoint, reader = reader_of(files[model], tmp_path / "made")
    names = [name for name in checkpoint.entries if checkpoint.format_of(name) == "NVFP4"]
    assert len(names) > 10
    for name in names:
        shape, scale = tuple(checkpoint.entries[name].shape), checkpoint.scale_of_matrix(name)
        assert 0 < scale < 0.01
        read = lambda *span, name=name, shape=shape: reader.read(name.removesuffix(".weight"), MatrixPart(shape, *span))  # noqa: E731
        weight = read(0, 0, shape[0])
        blocks = checkpoint.blocks(name, shape, 0, 0, shape[0])[0]
        plain = torch.from_numpy(gguf.dequantize(blocks.flatten(1).numpy(), Type.NVFP4))
        kept = scales_in_units(weight.scales, weight.units).float()  # of the file
        assert torch.equal(replace(weight, scales=kept / 2).dequantized(), plain)
        assert torch.equal(weight.units, torch.full((shape[0],), scale / 2))
        assert torch.equal(checkpoint.read(name, shape), plain * scale)
        assert torch.equal(read(1, 16, 48).dequantized(), weight.dequantized()[:, 16:48])
        assert torch.equal(read(1, 8, 24).parts[0], (plain * scale)[:, 8:24])


@pytest.mark.parametrize("model", MODELS)
def test_the_kernels_keep_the_codes(model, files, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    made = make_folder(files[model], tmp_path / "made")
    assert "matrices nvfp4" in ours(made, pool=pool).quantization["quantization"]
    expected = logits(made, pool=pool)
    assert torch.equal(logits(made, 7, pool=pool), expected)
    share = lambda group: logits(made, group=group, pool=make_pool())  # noqa: E731
    for found in on_ranks(2, tmp_path / "rendezvous", share):
        assert torch.equal(found, expected)
    if model == "llama":  # a token of the other may have other experts
        exact, on_torch = logits(made, dtype="float32"), logits(made)
        assert (expected - exact).norm() < 1.2 * (on_torch - exact).norm()


def test_a_scale_of_another_shape_is_refused_by_name(files, tmp_path):
    checkpoint, _ = reader_of(files["qwen3-moe"], tmp_path / "made")
    name = next(name for name in checkpoint.entries if ".experts.3." in name and "gate" in name)
    scale = next(each for each in checkpoint._stored if each == "blk.0.ffn_gate_exps.scale")
    checkpoint._stored[scale] = checkpoint._stored["blk.0.attn_q.scale"]
    with pytest.raises(ConfigError, match=r"tensor blk\.0\.ffn_gate_exps\.scale \[1\] .* needs F32 and one element"):
        checkpoint.scale_of_matrix(name)

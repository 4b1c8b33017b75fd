"""Quantized weights on the CPU kernels: linear layers against the torch ones, whole models against the float model."""

import pytest
import torch

from paged_serve.workers.backends.cpu.products.packed_linear import PackedLinear
from paged_serve.workers.backends.torch.quantized_linear import TorchInt8Linear
from paged_serve.workers.checkpoint.packed_weight import WeightFormat
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight, Int8Weight
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.packing import pack
from paged_serve.workers.layers.linear import JoinedLinear

from ..paged_loop import PagedLoop
from ..ranks import arithmetic_of_ranks, on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.quantized_checkpoints import write_quantized

PROMPT = random_tokens(60)


def random(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 1500), (70, 33), (64, 2048)])
def test_an_int8_linear_has_the_bits_of_the_torch_one(outputs, inputs, dtype, cpu_pools):
    codes = torch.randint(-128, 128, (outputs, inputs), generator=random(0)).to(torch.int8)
    weight = Int8Weight(codes, torch.rand(outputs, generator=random(1)) / 100)
    bias = torch.randn(outputs, generator=random(2)).to(dtype)
    x = torch.randn(13, inputs, generator=random(3)).to(dtype)
    x[4] = 0
    for pool in cpu_pools:
        kernel = PackedLinear(pool, Buffers(), pack(weight), bias)
        assert torch.equal(kernel(x), TorchInt8Linear(weight, bias)(x))
        assert torch.equal(PackedLinear(pool, Buffers(), pack(weight))(x), TorchInt8Linear(weight)(x))


@pytest.mark.parametrize("with_order", [False, True])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_an_int4_linear_multiplies_by_its_dequantized_codes(with_zeros, with_order, cpu_pools):
    codes = torch.randint(0, 16, (96, 256), dtype=torch.uint8, generator=random(0))
    scales = torch.rand(96, 8, generator=random(1)).half().float() / 64
    zeros = torch.randint(0, 16, (96, 8), dtype=torch.uint8, generator=random(2)) if with_zeros else None
    order = torch.randperm(256, generator=random(3)) if with_order else None
    weight = GroupedWeight(codes, scales, zeros, 4, order)
    x = torch.randn(9, 256, generator=random(4)).bfloat16()
    exact = x.double() @ weight.dequantized().double().t()
    size = x.double().abs() @ weight.dequantized().double().abs().t()
    found = PackedLinear(cpu_pools[1], Buffers(), pack(weight))(x)
    assert bool(((found - exact).abs() <= 2**-8 * exact.abs() + 2**-16 * size).all())


def test_joined_parts_do_not_write_over_one_another(cpu_pools):
    """The results of the parts are adjacent in one buffer."""
    x, buffers = torch.randn(5, 64, generator=random(0)).bfloat16(), Buffers()
    weights = [torch.randn(32, 64, generator=random(seed)).bfloat16() for seed in (1, 2)]
    joined = JoinedLinear([PackedLinear(cpu_pools[0], buffers, pack(weight)) for weight in weights])
    assert torch.equal(joined(x), PackedLinear(cpu_pools[0], Buffers(), pack(torch.cat(weights)))(x))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_checkpoint("qwen3", folder)
    return folder


def logits(model, chunk=1000):
    loop = PagedLoop(model, seed=chunk)
    return loop.prefill(loop.row(PROMPT), chunk)


def mean_square(x):
    return float(x.square().mean())


CASES = [
    *[(name, {}) for name in ("ct-w8a8", "gptq-asymmetric", "gptq-desc-act", "ct-w8a16")],
    *[("float", {"quantization": kind}) for kind in ("int8", "int4")],
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def quantized(request, source, tmp_path_factory):
    """A folder with a quantized model, and the options to load it."""
    name, options = request.param
    if name == "float":
        return source, options
    folder = tmp_path_factory.mktemp("models") / "quantized"
    write_quantized(source, folder, name)
    return folder, options


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_quantized_model_on_kernels_is_as_accurate_as_on_torch(quantized, pools, dtype):
    """The exact model is the torch model in float32; the other two round to 16 bits between products."""
    if pools[-1] is None:
        pytest.skip("the kernels are not built")
    folder, options = quantized
    exact = logits(ours(folder, "float32", **options))
    on_torch, on_kernels = (logits(ours(folder, dtype, pool=pool, **options)) for pool in (None, pools[-1]))
    assert mean_square(on_kernels - exact) < 1.3 * mean_square(on_torch - exact)
    assert mean_square(on_kernels - exact) < 0.02 * mean_square(exact)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_neither_chunks_nor_threads_change_a_bit_of_a_quantized_model(quantized, make_pool, dtype):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    folder, options = quantized
    expected = logits(ours(folder, dtype, pool=make_pool(), **options))
    for threads, chunks in ((1, (1, 13)), (3, (17,))):
        model = ours(folder, dtype, pool=make_pool(threads), **options)
        for chunk in chunks:
            assert torch.equal(logits(model, chunk), expected)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_two_ranks_on_kernels_have_the_bits_of_one(kind, tmp_path, make_pool):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    write_checkpoint("llama-even", tmp_path / "model", torch.bfloat16)
    options = {"quantization": kind}
    alone = logits(ours(tmp_path / "model", pool=make_pool(), **options))

    def work(group):
        model = ours(tmp_path / "model", group=group, pool=make_pool(), **options)
        return logits(model), logits(model, 7)

    for whole, chunked in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(whole, alone)
        assert torch.equal(chunked, alone)


@pytest.mark.parametrize("form", ["gptq-channel", "ct-w4a16-channel"])
def test_ranks_whose_shares_cut_a_word_of_int4_have_an_arithmetic_of_their_own(form, tmp_path, make_pool):
    """36 inputs with one scale are held as floats, 72 as int4: two ranks have other bits than one."""
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    write_checkpoint("llama", tmp_path / "model", torch.bfloat16, {"intermediate_size": 72})
    write_quantized(tmp_path / "model", folder := tmp_path / "quantized", form)
    of_one, of_two = arithmetic_of_ranks(folder, make_pool, tmp_path)
    assert of_two == [[f"{of_one} 2 ranks"] * 3] * 2


def test_forms_without_a_kernel_are_held_as_floats_and_reported(source, tmp_path, make_pool):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    write_quantized(source, tmp_path / "quantized", "gptq-8")
    model = ours(tmp_path / "quantized", "bfloat16", pool=make_pool())
    assert model.quantization["quantization"] == "21 matrices int8 g32 held as float"
    assert isinstance(model.layers[0].feed_forward.down, PackedLinear)
    assert model.layers[0].feed_forward.down.weight.format == WeightFormat.BF16
    write_quantized(source, tmp_path / "quantized", "gptq")
    model = ours(tmp_path / "quantized", "float32", pool=make_pool())
    assert model.quantization["quantization"] == "21 matrices int4 g32 held as float"
    assert torch.equal(logits(model), logits(ours(tmp_path / "quantized-float", "float32", pool=make_pool())))


def test_a_float16_checkpoint_quantized_or_not_is_computed_in_float16(tmp_path, make_pool):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    write_checkpoint("qwen3", tmp_path / "float", torch.float16)
    write_quantized(tmp_path / "float", tmp_path / "gptq", "gptq")
    for folder, options, weight_format in (
        (tmp_path / "gptq", {}, WeightFormat.INT4),
        (tmp_path / "float", {"quantization": "int8"}, WeightFormat.INT8),
        (tmp_path / "float", {}, WeightFormat.FP16),
    ):
        model = ours(folder, pool=make_pool(), **options)
        assert model.dtype == torch.float16
        assert isinstance(model.layers[0].feed_forward.down, PackedLinear)
        assert model.layers[0].feed_forward.down.weight.format == weight_format
        assert ours(folder, "bfloat16", pool=make_pool(), **options).dtype == torch.bfloat16

"""The kernels between the products on every built instruction set: close to float64, and independent for each row."""

import pytest
import torch
from torch.nn import functional

from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.geometry.rope_scaling import RopeScaling
from paged_serve.workers.kernels.cpu.attention import cached_head_dim
from paged_serve.workers.kernels.cpu.elementwise import activate, cap_logits, clip, normalise, rotate_and_cache
from paged_serve.workers.layers.activation import activated
from paged_serve.workers.layers.rotary import Rotary

from ...kernel_oracles import centred, gated, normalised, rotated, xielu
from ..cache_views import writing_view
from ..elementwise_calls import layer_norm, rms_norm, silu_mul

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 100, 129, 1024]


def random(*shape, dtype=torch.float32, seed=0, scale=1.0):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def assert_near(found, exact, operations):
    """Assert an error within `operations` float32 roundings of the magnitude and one rounding to the stored dtype."""
    stored = torch.finfo(found.dtype)
    size = operations * 2.0**-24 * exact.abs() + stored.eps / 2 * exact.abs().clamp(min=stored.smallest_normal)
    error = (found.double() - exact).abs()
    assert (error <= 1.01 * size).all(), (error / size).max()


def assert_rows_keep_their_bits(cpu_pools, count, operation):
    """Assert that `operation(pool, rows)` has the same bits for each row in any batch and on any number of threads."""
    whole = operation(cpu_pools[0], torch.arange(count))
    generator = torch.Generator().manual_seed(7)
    for size in (1, 2, 5, 17, count):
        rows = torch.randperm(count, generator=generator)[:size]
        for pool in cpu_pools:
            assert torch.equal(operation(pool, rows), whole[rows]), (size, pool.num_threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_norm_matches_its_definition(cpu_pools, size, dtype):
    hidden, weight = random(7, size, dtype=dtype, scale=3.0), random(size, seed=1)
    assert_near(rms_norm(cpu_pools[0], hidden, weight, 1e-5), normalised(hidden, weight, 1e-5), 8 + size / 64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_layer_norm_matches_its_definition(cpu_pools, size, dtype):
    hidden = random(7, size, dtype=dtype, scale=3.0) + 2
    weight, bias = random(size, seed=1), random(size, seed=2)
    wide = hidden.double()
    scale = (wide.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    plain = (wide - wide.mean(-1, keepdim=True)) * scale * weight
    for pool in cpu_pools:
        for own, exact in ((bias, plain + bias), (None, plain)):
            found = layer_norm(pool, hidden, weight, own, 1e-5)
            lost = (
                2.0**-24 * (16 + size / 16) * (wide.abs().amax(-1, keepdim=True) * scale * weight.abs() + exact.abs())
            )
            rounded = torch.finfo(dtype).eps / 2 * exact.abs().clamp(min=torch.finfo(dtype).smallest_normal)
            assert ((found.double() - exact).abs() <= lost + 1.01 * rounded).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_residual_is_added_in_place_before_the_norm(cpu_pools, dtype):
    hidden, delta, weight = random(300, 130, dtype=dtype), random(300, 130, dtype=dtype, seed=1), random(130, seed=2)
    expected = hidden + delta
    normed = rms_norm(cpu_pools[1], hidden, weight, 1e-6, delta)
    assert torch.equal(hidden, expected)
    assert torch.equal(normed, rms_norm(cpu_pools[0], expected, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_residual_may_be_scaled_and_be_the_norms_own_result(cpu_pools, dtype):
    hidden, delta, weight = random(70, 130, dtype=dtype), random(70, 130, dtype=dtype, seed=1), random(130, seed=2)
    expected = (hidden.float() + delta.float() * 0.22).to(dtype)
    for pool in cpu_pools:
        summed, place = hidden.clone(), delta.clone()
        found = normalise(pool, summed, weight, None, 1e-6, is_centred=False, delta=place, multiplier=0.22, out=place)
        assert torch.equal(summed, expected)
        assert torch.equal(found, rms_norm(pool, expected, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_the_gate_matches_its_definition(cpu_pools, size, dtype):
    gate_up = random(9, 2 * size, dtype=dtype, scale=5.0)
    assert_near(silu_mul(cpu_pools[0], gate_up), gated(gate_up), 8)


DEFINITIONS = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * torch.special.ndtr(x),
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "xielu": lambda x: xielu(x, 0.7, 1.3),
}


def activation_of(kind, is_gated):
    return Activation(kind, is_gated, alpha_p=0.7, alpha_n=1.3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "is_gated"),
    [(kind, is_gated) for kind in DEFINITIONS for is_gated in (True, False) if (kind, is_gated) != ("xielu", True)],
)
def test_an_activation_matches_its_definition(cpu_pools, kind, dtype, is_gated):
    x = torch.arange(-30, 30, 0.013).repeat(2).reshape(2, -1).to(dtype)
    up = random(*x.shape, dtype=dtype) if is_gated else torch.ones_like(x)
    exact = DEFINITIONS[kind](x.double()) * up.double()
    operand = torch.cat([x, up], 1) if is_gated else x
    for pool in cpu_pools:
        found = activate(pool, operand, activation_of(kind, is_gated))
        lost = 2e-7 * (x.abs().clamp(max=6) * up.abs()).double()  # error of the part of gelu beyond x, 0 from x = 6 on
        rounded = torch.finfo(dtype).eps / 2 * exact.abs().clamp(min=torch.finfo(dtype).smallest_normal)
        assert ((found.double() - exact).abs() <= lost + 1.01 * rounded + 1e-6 * exact.abs()).all()
        near = activated(operand, activation_of(kind, is_gated)).double()
        assert ((found.double() - near).abs() <= 2 * (lost + rounded) + 2e-6 * exact.abs()).all()


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_an_activation_keeps_nan(cpu_pools, kind):
    for pool in cpu_pools:
        found = activate(pool, torch.tensor([[torch.nan, 1.0] * 20]), activation_of(kind, is_gated=False))
        assert found.isnan().tolist() == [[True, False] * 20]


def test_the_gate_saturates_and_nan_stays_nan(cpu_pools):
    gate = torch.tensor([-1e30, -200.0, -88.0, 88.0, 200.0, 1e30, torch.nan, 1.0])
    up = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, torch.nan])
    found = silu_mul(cpu_pools[0], torch.cat([gate, up]).unsqueeze(0))[0]
    assert (found[1:3].abs() < 1e-35).all()
    assert torch.equal(found[3:6], gate[3:6])
    assert found[6:].isnan().all()


def rotated_by_definition(heads, norm, eps, angles):
    """Rotated heads [tokens, heads, head_dim] in float64, and the magnitude of summands; `angles` are per token."""
    x = heads.double() if norm is None else normalised(heads, norm, eps)
    low, high = x.abs().chunk(2, 2)
    cosine, sine = angles.double().abs().unsqueeze(1).chunk(2, 2)
    return rotated(x, angles), torch.cat([low * cosine + high * sine, high * cosine + low * sine], 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"), [(4, 2, 2, 16), (3, 3, 20, 48), (7, 1, 24, 16), (16, 8, 128, 64)]
)
@pytest.mark.parametrize("norms", [True, False])
def test_rotation_fills_the_query_and_the_cache_and_nothing_else(
    cpu_pools, norms, heads, kv_heads, head_dim, block_size, dtype
):
    tokens, blocks, eps = 37, 11, 1e-6
    generator = torch.Generator().manual_seed(3)
    projected = random(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype, scale=2.0)
    norm = [random(head_dim, seed=4), random(head_dim, seed=5)] if norms else [None, None]
    positions = torch.randint(0, 3000, (tokens,), generator=generator)
    slots = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    table = Rotary(RopeScaling("default"), head_dim).table(3000)
    shape = blocks, kv_heads, block_size, cached_head_dim(head_dim)
    keys, values = (torch.full(shape, torch.nan, dtype=dtype) for _ in "kv")
    query = torch.empty(tokens, heads, head_dim, dtype=dtype)
    rotate_and_cache(cpu_pools[1], projected, table, writing_view(positions, slots, keys, values), 0, query, *norm, eps)

    parts = projected.view(tokens, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    slotted = [cache[slots // block_size, :, slots % block_size] for cache in (keys, values)]
    written = [heads[..., :head_dim] for heads in slotted]
    assert all((heads[..., head_dim:] == 0).all() for heads in slotted)
    for found, part, weight in ((query, parts[0], norm[0]), (written[0], parts[1], norm[1])):
        exact, magnitude = rotated_by_definition(part, weight, eps, table[positions])
        error = (found.double() - exact).abs()
        rounding = torch.finfo(dtype).eps / 2 * magnitude.clamp(min=torch.finfo(dtype).smallest_normal)
        assert (error <= (2.0**-24 * (12 + head_dim / 64) * magnitude + rounding) * 1.01).all()
    assert torch.equal(written[1], parts[2])
    untouched = torch.ones(blocks * block_size, dtype=torch.bool).index_fill_(0, slots, False)
    for cache in (keys, values):
        assert cache.transpose(1, 2).flatten(0, 1)[untouched].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 2), (3, 3, 20), (16, 8, 128)])
@pytest.mark.parametrize("biased", [True, False])
def test_heads_may_be_centred_with_weights_of_their_own_and_queries_scaled(
    cpu_pools, biased, heads, kv_heads, head_dim, dtype
):
    tokens, block_size, eps = 21, 16, 1e-6
    projected = random(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype, scale=2.0) + 1
    weights = [1 + random(count, head_dim, seed=count) / 4 for count in (heads, kv_heads)]
    biases = [random(count, head_dim, seed=9 + count) if biased else None for count in (heads, kv_heads)]
    positions, slots, query_scales = torch.arange(tokens) * 3, torch.arange(tokens), 1 + random(100).abs()
    table = Rotary(RopeScaling("default"), head_dim).table(100)
    parts = projected.view(tokens, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    angles, factors = table[positions], query_scales[positions].double().view(-1, 1, 1)
    query_norm, key_norm = (centred(*each, eps) for each in zip(parts[:2], weights, biases, strict=True))
    for pool in cpu_pools:
        keys, values = (
            torch.full((2, kv_heads, block_size, cached_head_dim(head_dim)), torch.nan, dtype=dtype) for _ in "kv"
        )
        view, query = writing_view(positions, slots, keys, values), torch.empty(tokens, heads, head_dim, dtype=dtype)
        options = {"biases": tuple(biases), "is_centred": True, "query_scales": query_scales}
        rotate_and_cache(pool, projected, table, view, 0, query, *weights, eps, **options)
        found = keys[slots // block_size, :, slots % block_size][..., :head_dim]
        tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 30 * torch.finfo(dtype).eps}
        torch.testing.assert_close(found.double(), rotated(key_norm, angles), **tolerance)
        torch.testing.assert_close(query.double(), rotated(query_norm, angles) * factors, **tolerance)
        assert torch.equal(values[slots // block_size, :, slots % block_size][..., :head_dim], parts[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 15, 100])
def test_clipping_limits_both_sides_and_keeps_nan(cpu_pools, size, dtype):
    x = random(300, size, dtype=dtype, scale=3.0)
    x[7, 0], x[8, 0], x[9, 0] = torch.nan, torch.inf, -torch.inf
    for pool in cpu_pools:
        torch.testing.assert_close(clip(pool, x.clone(), 1.3), x.clamp(-1.3, 1.3), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_of_strided_rows_has_the_bits_of_one_of_whole_rows(cpu_pools, dtype):
    wide, weight = random(40, 200, dtype=dtype), random(96, seed=1)
    for pool in cpu_pools:
        found, part = wide.clone(), wide[:, 64:160].contiguous()
        normalise(pool, found[:, 64:160], weight, None, 1e-6, is_centred=False, out=found[:, 64:160])
        assert torch.equal(found[:, 64:160], normalise(pool, part, weight, None, 1e-6, is_centred=False))
        assert torch.equal(found[:, :64], wide[:, :64])
        assert torch.equal(found[:, 160:], wide[:, 160:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 34, 80, 128, 256, 300])
def test_an_int8_cache_gets_codes_and_scales(cpu_pools, head_dim, dtype):
    """A key's codes are computed from its float32 values, without the rounding of a 16-bit cache."""
    tokens, kv_heads, block_size, blocks = 33, 3, 16, 5
    projected = random(tokens, (5 + 2 * kv_heads) * head_dim, dtype=dtype)
    places = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(4))[:tokens]
    positions, norm = torch.arange(tokens) * 7, random(head_dim, seed=2)
    table = Rotary(RopeScaling("default"), head_dim).table(300)
    for pool in cpu_pools:
        codes = torch.full((2, blocks, kv_heads, block_size, cached_head_dim(head_dim)), 99, dtype=torch.int8)
        scales = torch.full(codes.shape[:-1], torch.nan)
        query = torch.empty(tokens, 5, head_dim, dtype=dtype)
        view = writing_view(positions, places, codes[0], codes[1], (scales[0], scales[1]))
        rotate_and_cache(pool, projected, table, view, 0, query, norm, norm, 1e-6)
        parts = projected.view(tokens, -1, head_dim).split([5, kv_heads, kv_heads], 1)
        keys, _ = rotated_by_definition(parts[1], norm, 1e-6, table[positions])
        for index, exact in enumerate((keys, parts[2].double())):
            slotted = codes[index, places // block_size, :, places % block_size].double()
            found = slotted[..., :head_dim]
            assert (slotted[..., head_dim:] == 0).all()
            factors = scales[index, places // block_size, :, places % block_size].double()
            torch.testing.assert_close(factors, exact.abs().amax(-1) / 127, rtol=2e-6, atol=0)
            assert (found.abs().amax(-1) == 127).all()
            assert ((found * factors.unsqueeze(-1) - exact).abs() <= 0.5001 * factors.unsqueeze(-1)).all()
        untouched = torch.ones(blocks * block_size, dtype=torch.bool).index_fill_(0, places, False)
        assert (codes.transpose(2, 3).flatten(1, 2)[:, untouched] == 99).all()
        assert scales.transpose(2, 3).flatten(1, 2)[:, untouched].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [2, 34, 96, 1024])
def test_rows_keep_their_bits_in_any_batch(cpu_pools, size, dtype):
    count = 150
    hidden, delta, weight = random(count, size, dtype=dtype), random(count, size, dtype=dtype, seed=1), random(size)
    assert_rows_keep_their_bits(cpu_pools, count, lambda pool, r: rms_norm(pool, hidden[r], weight, 1e-6, delta[r]))
    gate_up = random(count, 2 * size, dtype=dtype, scale=4.0)
    assert_rows_keep_their_bits(cpu_pools, count, lambda pool, r: silu_mul(pool, gate_up[r]))
    projected, table = random(count, 4 * size, dtype=dtype), Rotary(RopeScaling("default"), size).table(count)
    places = torch.randperm(count, generator=torch.Generator().manual_seed(2))

    def rotated(pool, rows):
        """Queries of two heads, and the key and value of one head, concatenated."""
        keys, values = (torch.empty(10, 1, 16, cached_head_dim(size), dtype=dtype) for _ in "kv")
        query = torch.empty(len(rows), 2, size, dtype=dtype)
        slots = places[: len(rows)].contiguous()
        view = writing_view(rows, slots, keys, values)
        rotate_and_cache(pool, projected[rows], table, view, 0, query, weight, weight, 1e-6)
        return torch.cat([query.flatten(1), keys.view(160, -1)[slots], values.view(160, -1)[slots]], 1)

    assert_rows_keep_their_bits(cpu_pools, count, rotated)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (3, 1000), (2, 20011)])
def test_capping_logits_applies_the_tanh_and_changes_nothing_else(cpu_pools, rows, columns):
    wide = 100 * torch.randn(rows, columns + 7, generator=torch.Generator().manual_seed(columns))
    wide[0, :4] = torch.tensor([0.0, -0.0, torch.inf, torch.nan])
    for pool in cpu_pools:
        found = wide.clone()
        cap_logits(pool, found[:, :columns], 30.0)
        expected = 30 * torch.tanh(wide[:, :columns].double() / 30)
        torch.testing.assert_close(found[:, :columns].double(), expected, rtol=0, atol=6e-6, equal_nan=True)
        assert torch.equal(found[:, columns:], wide[:, columns:])
        alone = wide[-1:].clone()
        assert torch.equal(cap_logits(pool, alone, 30.0)[:, :columns].nan_to_num(), found[-1:, :columns].nan_to_num())

"""Kernels of mixtures of experts: routing as its formula in numpy, and each row's product as without other experts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.torch.experts import route
from paged_serve.workers.checkpoint.stacked_experts import of_expert, stacked_experts
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight, Int8Weight
from paged_serve.workers.geometry.experts import Experts
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.elementwise import activate
from paged_serve.workers.kernels.cpu.experts.products import activate_places, expert_gemm
from paged_serve.workers.kernels.cpu.experts.routing import (
    add_identities,
    add_shared_expert,
    combine_experts,
    dispatch_rows,
    route_experts,
)
from paged_serve.workers.kernels.cpu.gemm import gemm
from paged_serve.workers.kernels.cpu.packing import pack

from .numpy_routing import routed

ROUTERS = {
    "softmax": Experts(60, 4, 64),
    "renormalised": Experts(128, 8, 64, renormalises=True, scale=2.5),
    "of the chosen": Experts(32, 4, 64, "softmax_of_chosen"),
    "sigmoid": Experts(16, 1, 64, "sigmoid"),
    "sigmoids of the chosen": Experts(32, 4, 64, "sigmoid_of_chosen", has_correction=True),
    "groups": Experts(24, 6, 64, "sigmoid", True, 1.5, groups=8, top_groups=3, has_correction=True),
    "groups by the best": Experts(24, 6, 64, "softmax", scale=16.0, groups=8, top_groups=3),
    "more groups than experts of a token": Experts(16, 2, 64, "sigmoid", groups=8, top_groups=4, has_correction=True),
    "one of one": Experts(1, 1, 64),
    "all": Experts(7, 7, 64, renormalises=True),
    "sparse mixer": Experts(16, 2, 64, "sparse_mixer", jitter=0.1),
}
ROWS = 37


def random(seed):
    return torch.Generator().manual_seed(seed)


def logits_of(experts, rows=ROWS, columns=0):
    """Logits with many ties, in rows of which one ends with `columns` others."""
    logits = 2 * torch.randn(rows, experts.count + columns, generator=random(0))
    logits[::3] = logits[::3].round()
    logits[5] = 0.25
    return logits


def correction_of(experts):
    return 0.3 * torch.randn(experts.count, generator=random(1)) if experts.has_correction else None


@pytest.mark.parametrize("router", ROUTERS)
def test_experts_and_weights_have_the_bits_of_the_formula_in_numpy(router, cpu_pools):
    experts = ROUTERS[router]
    logits, correction = logits_of(experts, columns=1)[:, : experts.count], correction_of(experts)
    chosen, weights = routed(logits.numpy(), experts, None if correction is None else correction.numpy())
    for pool in cpu_pools:
        found = route_experts(pool, logits, experts, range(experts.count), correction, Buffers())
        assert np.array_equal(found.experts.numpy(), chosen)
        assert np.array_equal(found.weights.numpy().view(np.int32), weights.view(np.int32))


@pytest.mark.parametrize("router", ROUTERS)
def test_the_torch_reference_chooses_the_same_experts(router, cpu_pools):
    experts = ROUTERS[router]
    logits, correction = logits_of(experts), correction_of(experts)
    chosen, weights = route(logits, experts, correction)
    found = route_experts(cpu_pools[0], logits, experts, range(experts.count), correction, Buffers())
    assert torch.equal(found.experts.long(), chosen)
    torch.testing.assert_close(found.weights, weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("held", [range(24), range(6, 12), range(18, 24)], ids=str)
def test_places_are_in_order_of_experts_and_then_of_rows(held, cpu_pools):
    experts = ROUTERS["groups"]
    for pool in cpu_pools:
        found = route_experts(pool, logits_of(experts), experts, held, correction_of(experts), Buffers())
        pairs = sorted((int(e), row) for row, own in enumerate(found.experts) for e in own if int(e) in held)
        place_of = {pair: place for place, pair in enumerate(pairs)}
        for row, (own, places) in enumerate(zip(found.experts.tolist(), found.places.tolist(), strict=True)):
            assert places == [place_of.get((expert, row), -1) for expert in own]
        assert found.starts.tolist() == [sum(e < first for e, _ in pairs) for first in [*held, held.stop]]


def test_logits_that_are_not_finite_are_routed_to_experts_that_exist(cpu_pools):
    for experts in ROUTERS.values():
        logits = torch.full((3, experts.count), torch.nan)
        logits[1], logits[2] = torch.inf, -torch.inf
        found = route_experts(cpu_pools[1], logits, experts, range(experts.count), correction_of(experts), Buffers())
        assert bool(((found.experts >= 0) & (found.experts < experts.count)).all())
        assert sorted(found.places.flatten().tolist()) == list(range(3 * experts.top_k))


EXPERTS = Experts(6, 2, 40)
FORMS = {
    "bf16": (torch.bfloat16, lambda w: w.bfloat16()),
    "fp16": (torch.float16, lambda w: w.half()),
    "fp32": (torch.float32, lambda w: w),
    "int8": (torch.bfloat16, lambda w: Int8Weight((w * 20).round().clamp(-127, 127).to(torch.int8), w.abs().amax(1))),
    "int4": (torch.bfloat16, lambda w: grouped(w, None)),
    "mxfp4": (torch.bfloat16, lambda w: replace(grouped(w, None), is_e2m1=True)),
    "nvfp4": (torch.bfloat16, lambda w: nvfp4(w)),
    "int4 with zeros": (torch.float16, lambda w: grouped(w, 7)),
}


def grouped(w, zero):
    scales = w.view(len(w), -1, 32).abs().amax(2).bfloat16().float() / 8
    zeros = None if zero is None else torch.full(scales.shape, zero, dtype=torch.uint8)
    codes = (w / scales.repeat_interleave(32, 1) + 8).round().clamp(0, 15).to(torch.uint8)
    return GroupedWeight(codes, scales, zeros, 4)


def nvfp4(w):
    """The same with a unit for each output."""
    units, one = w.abs().amax(1) / 300, grouped(w, None)
    return replace(one, scales=(one.scales / units[:, None]).half() * units[:, None], is_e2m1=True, units=units)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_bits_of_the_product_with_its_own_expert(form, pools_of_each_order):
    """70 outputs are no whole panels; expert 3 has no rows, and its weights are not read."""
    dtype, make = FORMS[form]
    inputs, outputs = 96, 70
    each = [make(torch.randn(outputs, inputs, generator=random(e))) for e in range(EXPERTS.count)]
    if form in ("bf16", "fp16", "fp32"):
        each[3].fill_(torch.nan)
    weight, bias = pack(stacked_experts("experts", each)), torch.randn(EXPERTS.count, outputs, generator=random(9))
    logits = logits_of(EXPERTS)
    logits[:, 3] = -100.0
    x = torch.randn(ROWS, inputs, generator=random(7)).to(dtype)
    for pool in pools_of_each_order:
        buffers = Buffers()
        routing = route_experts(pool, logits, EXPERTS, range(EXPERTS.count), None, buffers)
        rows = dispatch_rows(pool, x, routing, buffers)
        out = torch.full((routing.max_places, outputs), torch.nan)
        expert_gemm(pool, rows, weight, bias, routing, out, buffers)
        for expert, one in enumerate(each):
            own = (routing.experts == expert).any(1).nonzero()[:, 0]
            expected = gemm(pool, x[own], pack(one), bias[expert].contiguous(), out_dtype=torch.float32)
            assert torch.equal(out[routing.starts[expert] : routing.starts[expert + 1]], expected), expert
        assert bool(out.isfinite().all())


@pytest.mark.parametrize("form", ["fp16", "int4 with zeros"])
def test_rows_that_are_widened_in_several_slabs_have_the_bits_of_their_own_products(form, make_pool):
    """64 rows of 128 K floats fill a slab; the rows of one expert are in two of them."""
    pool, experts, inputs, outputs = make_pool(2), Experts(3, 2, 40), 1 << 17, 16
    dtype, make = FORMS[form]
    each = [make(torch.randn(outputs, inputs, generator=random(e))) for e in range(3)]
    weight, buffers = pack(stacked_experts("experts", each)), Buffers()
    routing = route_experts(pool, logits_of(experts, 50), experts, range(3), None, buffers)
    rows = dispatch_rows(pool, torch.randn(50, inputs, generator=random(7)).to(dtype), routing, buffers)
    out = expert_gemm(pool, rows, weight, None, routing, torch.empty(100, outputs), buffers)
    for expert, one in enumerate(each):
        own = slice(*routing.starts[expert : expert + 2].tolist())
        assert torch.equal(out[own], gemm(pool, rows[own], pack(one), out_dtype=torch.float32)), expert


@pytest.mark.parametrize(("form", "inputs"), [("bf16", 4096), ("int8", 8192)])
def test_experts_of_more_rows_than_a_cache_holds_have_the_bits_of_fewer_rows(form, inputs, pools_of_each_order):
    """In tile order 400 rows of 8 KB are multiplied in three sets; expert 0 has rows in two of them."""
    experts, (dtype, make) = Experts(3, 2, 40), FORMS[form]
    each = [make(torch.randn(16, inputs, generator=random(e))) for e in range(3)]
    weight, logits = pack(stacked_experts("experts", each)), logits_of(experts, 200)
    logits[:, 0] = 100.0
    x = torch.randn(200, inputs, generator=random(7)).to(dtype)
    for pool in pools_of_each_order:
        buffers = Buffers()
        routing = route_experts(pool, logits, experts, range(3), None, buffers)
        rows = dispatch_rows(pool, x, routing, buffers)
        out = expert_gemm(pool, rows, weight, None, routing, torch.empty(400, 16), buffers)
        for expert, one in enumerate(each):
            own, packed = slice(*routing.starts[expert : expert + 2].tolist()), pack(one)
            few = [gemm(pool, part, packed, out_dtype=torch.float32) for part in rows[own].split(48)]
            assert torch.equal(out[own], torch.cat(few)), expert


def test_the_stacked_weight_of_one_expert_is_its_own():
    each = [torch.randn(70, 8, generator=random(e)) for e in range(3)]
    stacked = stacked_experts("experts", each)
    assert len(stacked) == 3 * 128
    assert all(torch.equal(of_expert(stacked, e, 70), one) for e, one in enumerate(each))


@pytest.mark.parametrize("other", [*FORMS][:-1])
def test_experts_of_different_forms_are_refused(other):
    each = [FORMS[form][1](torch.randn(64, 32)) for form in ("int4 with zeros", other)]
    with pytest.raises(ConfigError, match=r"layers.0.experts: the experts of a layer must be quantized in one way"):
        stacked_experts("layers.0.experts", each)
    with pytest.raises(ConfigError, match="in one way"):
        stacked_experts("layers.0.experts", each[::-1])


def test_activations_of_places_in_use_are_those_of_their_rows(cpu_pools):
    activation = Activation("clamped", True, 1.7, 0.8)
    x = torch.randn(ROWS * 2, 66, generator=random(0)).bfloat16()
    gate, up = x.double().chunk(2, dim=1)
    gate, up = gate.clamp(max=0.8), up.clamp(-0.8, 0.8)
    exact = gate * torch.sigmoid(1.7 * gate) * (up + 1)
    for pool in cpu_pools:
        routing = route_experts(pool, logits_of(EXPERTS), EXPERTS, range(2, 4), None, Buffers())
        used = int(routing.starts[-1])
        found = activate_places(pool, x, activation, routing, Buffers())
        assert torch.equal(found[:used], activate(pool, x, activation)[:used])
        torch.testing.assert_close(found[:used].double(), exact[:used], rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 10])
def test_outputs_are_added_in_expert_order_in_four_shares_and_ranks_add_the_same(count, cpu_pools):
    experts = Experts(count, min(count, 5), 64, renormalises=True)
    outputs = torch.randn(ROWS * experts.top_k, 50, generator=random(3))
    for pool in cpu_pools:
        buffers = Buffers()
        routing = route_experts(pool, logits_of(experts), experts, range(count), None, buffers)
        sums = np.zeros((4, ROWS, 50), np.float32)
        for row in range(ROWS):
            for expert, place, weight in zip(
                routing.experts[row], routing.places[row], routing.weights[row], strict=True
            ):
                sums[experts.share_of(int(expert)), row] += outputs[place].numpy() * weight.numpy()
        whole = combine_experts(pool, outputs, routing, count, range(4), torch.empty(ROWS, 50))
        assert np.array_equal(whole.numpy(), (sums[0] + sums[1]) + (sums[2] + sums[3]))
        halves = [
            combine_experts(pool, outputs, routing, count, range(s, s + 2), torch.empty(ROWS, 50)) for s in (0, 2)
        ]
        assert torch.equal(halves[0] + halves[1], whole)
        quarters = [
            combine_experts(pool, outputs, routing, count, range(s, s + 1), torch.empty(ROWS, 50)) for s in range(4)
        ]
        assert torch.equal((quarters[0] + quarters[1]) + (quarters[2] + quarters[3]), whole)
        rounded = combine_experts(pool, outputs, routing, count, range(4), torch.empty(ROWS, 50, dtype=torch.bfloat16))
        assert torch.equal(rounded, whole.bfloat16())


def test_weights_multiply_inputs_or_outputs(cpu_pools):
    x, buffers = torch.randn(ROWS, 50, generator=random(3)).bfloat16(), Buffers()
    routing = route_experts(cpu_pools[0], logits_of(EXPERTS), EXPERTS, range(6), None, buffers)
    rows = dispatch_rows(cpu_pools[0], x, routing, buffers, weighed=True)
    for row in range(ROWS):
        for place, weight in zip(routing.places[row], routing.weights[row], strict=True):
            assert torch.equal(rows[place], (x[row].float() * weight).bfloat16())
    plain = combine_experts(cpu_pools[0], rows.float(), routing, 6, range(4), torch.empty(ROWS, 50), weighed=False)
    ones = replace(routing, weights=torch.ones_like(routing.weights))
    assert torch.equal(plain, combine_experts(cpu_pools[0], rows.float(), ones, 6, range(4), torch.empty(ROWS, 50)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_identities_add_their_inputs_times_their_weights(dtype, cpu_pools):
    experts = Experts(5, 3, 64, identities=4, scale=2.0)
    wide = torch.randn(ROWS, 100, generator=random(3)).to(dtype)
    x, routed_part = wide[:, 50:], torch.randn(ROWS, 80, generator=random(4))[:, :50]
    logits = 2 * torch.randn(ROWS, 9, generator=random(0))
    for pool in cpu_pools:
        routing = route_experts(pool, logits, experts, range(5), None, Buffers())
        chosen, weights = route(logits, experts, None)
        assert torch.equal(routing.experts, chosen.int())
        assert ((routing.places < 0) == (chosen >= 5)).all()
        assert routing.starts[-1] == (chosen < 5).sum()
        total = torch.where(chosen >= 5, weights, 0.0).double().sum(1, keepdim=True)
        exact = routed_part.double() + total * x.double()
        out = add_identities(pool, routed_part, x, routing, 5, torch.empty(ROWS, 50, dtype=dtype))
        torch.testing.assert_close(out.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
        assert torch.equal(out[total.flatten() == 0], routed_part[total.flatten() == 0].to(dtype))


def test_a_shared_expert_is_added_times_the_sigmoid_of_its_gate(cpu_pools):
    routed_part, shared = torch.randn(2, ROWS, 50, generator=random(3))
    gates = torch.randn(ROWS, 3, generator=random(4))[:, 2:]
    out = add_shared_expert(cpu_pools[0], routed_part, shared, None, torch.empty(ROWS, 50))
    assert torch.equal(out, routed_part + shared)
    out = add_shared_expert(cpu_pools[0], routed_part, shared, gates, torch.empty(ROWS, 50))
    torch.testing.assert_close(out, routed_part + torch.sigmoid(gates) * shared)

"""Checks of the kernels of mixtures of experts, each for one case on any launcher.

Routing, places and sums must have the bits of their formula in numpy, which are also those of csrc/cpu; products are
compared with float64, and with their own bits in other shapes, orders and batches.
"""

from dataclasses import replace

import numpy as np
import torch

from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight, on_device
from paged_serve.workers.geometry.experts import Experts
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.kernels.cuda.elementwise import activate
from paged_serve.workers.kernels.cuda.experts.coded_weight import CodedWeight, multiplies
from paged_serve.workers.kernels.cuda.experts.combining import (
    clamped_gate,
    combine_experts,
    join_experts,
    weigh_experts,
)
from paged_serve.workers.kernels.cuda.experts.products import (
    LARGE,
    SMALL,
    coded_product,
    expert_product,
    segmented_product,
)
from paged_serve.workers.kernels.cuda.experts.routing import Choice, place_experts, route_experts

from ...workers.kernels.products.numpy_routing import exp, routed
from ..small_floats import ROUNDING
from .checks_elementwise import UNTOUCHED, bits, inner_of, untouched
from .expert_case import IN_CHECK, ROUTERS, Case, in_shape, logits_of, random

CODED = (  # inputs, those of a group, and the form
    (96, 32, {"has_zeros": True}),
    (256, 128, {}),
    (160, 32, {"is_e2m1": True}),
    (96, 16, {"is_e2m1": True}),
)
BF16, FP16, F32 = torch.bfloat16, torch.float16, torch.float32


def check_routing(launcher, experts, device="cpu", segments=1, has_bias=False, has_factors=False):
    planes = logits_of(experts, segments=segments)
    bias = torch.randint(-9, 9, (experts.count,), generator=random(3)) / 16 if has_bias else None
    correction = 0.3 * torch.randn(experts.count, generator=random(1)) if experts.has_correction else None
    factors = 0.5 + torch.rand(experts.count, generator=random(4)) if has_factors else None
    on_device = (None if each is None else each.to(device) for each in (bias, correction, factors))
    found = route_experts(launcher, planes.to(device), experts, *on_device)
    logits = planes.sum(0).numpy()
    logits, gates = logits[:, : experts.count], logits[:, experts.count :]
    logits = logits if bias is None else logits + bias.numpy()
    chosen, weights = routed(logits, experts, None if correction is None else correction.numpy())
    if factors is not None:
        assert experts.scale == 1.0, "the scale comes after the factors"
        weights = weights * factors.numpy()[chosen]
    assert np.array_equal(found.experts.cpu().numpy(), chosen)
    assert np.array_equal(found.weights.cpu().numpy().view(np.int32), weights.view(np.int32))
    if experts.has_shared_gate:
        expected = np.float32(1) / (np.float32(1) + exp(-gates[:, 0]))
        assert np.array_equal(found.gates.cpu().numpy().view(np.int32), expected.view(np.int32))


def check_logits_that_are_not_finite(launcher, experts, device="cpu"):
    """They are routed to experts that exist, and to none twice."""
    logits = torch.full((1, 4, experts.count + experts.has_shared_gate), torch.nan)
    logits[:, 1], logits[:, 2] = torch.inf, -torch.inf
    logits[:, 3, ::2] = 0.5
    correction = torch.zeros(experts.count, device=device) if experts.has_correction else None
    found = route_experts(launcher, logits.to(device), experts, None, correction).experts.cpu()
    assert bool(((found >= 0) & (found < experts.count)).all())
    assert bool((found.diff(dim=1) > 0).all()), "not ascending, or twice"
    if experts.groups == 1 and not experts.has_correction and 2 * experts.top_k <= experts.count:
        assert bool((found[3] % 2 == 0).all()), "a NaN is chosen before numbers"


def check_places(launcher, case):
    found, (places, sources, starts) = case.places(launcher), case.expected()
    assert found.places.tolist() == places
    assert found.sources.tolist()[: len(sources)] == sources
    assert found.starts.tolist() == starts


def check_expert_product(launcher, dtype, out_dtype, case, inputs, outputs, *, gathers, has_bias):
    """Every row's product is close to float64, places not in use stay untouched, and no shape changes a bit."""
    held, device = len(case.held), case.device
    each = [torch.randn(outputs, inputs, generator=random(e)).to(dtype) for e in range(held)]
    each[case.count // 2 - case.held.start].fill_(torch.nan)  # the expert without rows
    bias = torch.randn(held, outputs, generator=random(9)) if has_bias else None
    places, (_, sources, starts) = case.places(launcher), case.expected()
    entries = case.rows * case.top_k
    x = torch.randn(case.rows if gathers else entries, inputs, generator=random(7)).to(dtype)
    if not gathers:
        x[len(sources) :] = torch.nan
    weight = stacked_experts("experts", each).to(device)
    on_device = x.to(device), weight, None if bias is None else bias.to(device), places

    def run():
        guarded = untouched(out_dtype, device, entries, outputs)
        expert_product(launcher, *on_device, guarded[1:-1], gathers=gathers)
        return inner_of(guarded)

    found, other = in_shape(SMALL, run), in_shape(LARGE, run)
    assert torch.equal(bits(found), bits(other)), "the shape changes bits"
    used = len(sources)
    assert (bits(found[used:]) == UNTOUCHED).all(), "a place that is not in use was written"
    for e, own in enumerate(each):
        here = range(starts[e], starts[e + 1])
        if not here:
            continue
        rows = x[[sources[i] for i in here]] if gathers else x[here.start : here.stop]
        exact = rows.double() @ own.double().t()
        exact = exact if bias is None else exact + bias[e].double()
        tolerance = inputs * 2.0**-21 + (0 if out_dtype == F32 else ROUNDING[out_dtype]) * exact.abs()
        assert ((found[here.start : here.stop].double() - exact).abs() <= tolerance).all(), f"expert {e}"
    return found


def grouped(outputs, inputs, group_size, seed, *, has_zeros=False, is_e2m1=False):
    codes = torch.randint(16, (outputs, inputs), generator=random(seed), dtype=torch.uint8)
    scales = 0.1 + torch.rand(outputs, inputs // group_size, generator=random(seed + 1))
    zeros = torch.randint(16, scales.shape, generator=random(seed + 2), dtype=torch.uint8) if has_zeros else None
    return GroupedWeight(codes, scales, zeros, 4, is_e2m1=is_e2m1)


def check_coded_products(launcher, dtype, inputs, group_size, form, device="cpu"):
    """Codes give the bits of the numbers they stand for, for experts and for a single matrix."""
    case, outputs = Case(70, 3, 6, range(1, 5), device), 72
    coded = stacked_experts("experts", [grouped(outputs, inputs, group_size, e, **form) for e in case.held])
    assert multiplies(coded)
    places = case.places(launcher)
    x = torch.randn(case.rows, inputs, generator=random(7)).to(dtype).to(device)
    bias = torch.randn(len(case.held), outputs, generator=random(9)).to(device)
    forms = CodedWeight.of(on_device(coded, device)), coded.dequantized().to(dtype).to(device)

    def of_experts(weight):
        out = torch.zeros((case.rows * case.top_k, outputs), dtype=dtype, device=device)
        return expert_product(launcher, x, weight, bias, places, out, gathers=True)

    def of_one(rows):
        out = torch.zeros((rows, len(coded.codes)), dtype=torch.float32, device=device)
        return coded_product(launcher, x[:rows], forms[0], None, out)

    for shape in (SMALL, LARGE):
        found, expected = (in_shape(shape, lambda form=form: of_experts(form)).cpu() for form in forms)
        assert torch.equal(bits(found), bits(expected))
        assert torch.equal(in_shape(shape, lambda: of_one(70)), segmented_product(launcher, x, forms[1], 1)[0])
    assert torch.equal(of_one(3), of_one(70)[:3])


def check_a_rows_product_depends_on_nothing_else(launcher, dtype, device="cpu"):
    """Alone, among others in any order, and as a row of a large tile: the same bits."""
    case = Case(75, 2, 4, range(4), device)
    weight = torch.randn(4 * 128, 136, generator=random(2)).to(dtype).to(device)
    x = torch.randn(case.rows, 136, generator=random(3)).to(dtype)

    def of(rows, shape):
        places = place_experts(launcher, case.chosen[rows].contiguous().to(device), case.held)
        out = torch.zeros((len(rows) * 2, 90), device=device)
        run = lambda: expert_product(launcher, x[rows].to(device), weight, None, places, out, gathers=True)  # noqa: E731
        return in_shape(shape, run).cpu()[places.places.cpu().long()]

    everything = of(torch.arange(case.rows), LARGE)
    order = torch.randperm(case.rows, generator=random(4))
    assert torch.equal(of(order, SMALL), everything[order])
    for row in (0, 1, 30, 74):
        assert torch.equal(of(torch.tensor([row]), SMALL)[0], everything[row])


def check_segmented_product(launcher, dtype, rows, inputs, outputs, segments, device="cpu"):
    x = torch.randn(rows, inputs + 8, generator=random(1)).to(dtype)
    weight = torch.randn(outputs, inputs, generator=random(2)).to(dtype)
    run = lambda: segmented_product(launcher, x.to(device)[:, :inputs], weight.to(device), segments).cpu()  # noqa: E731
    found = in_shape(SMALL, run)
    assert torch.equal(found, in_shape(LARGE, run))
    parts = zip(x[:, :inputs].double().chunk(segments, 1), weight.double().chunk(segments, 1), strict=True)
    exact = torch.stack([part @ own.t() for part, own in parts])
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=inputs * 2.0**-21)
    alone = segmented_product(launcher, x[-1:].to(device)[:, :inputs], weight.to(device), segments).cpu()
    assert torch.equal(alone[:, 0], found[:, -1])


def chosen_places(launcher, case):
    chosen = case.chosen
    weights = torch.rand(chosen.shape, generator=random(5))
    return Choice(chosen.to(case.device), weights.to(case.device), None), case.places(launcher)


def check_sums(launcher, dtype, rows, top_k, count, size, segments, device="cpu", sizes=(2, 4)):
    """One rank, two and four add the same float32 sums in the same order, then round once."""
    case = Case(rows, top_k, count, range(count), device)
    choice, places = chosen_places(launcher, case)
    outputs = torch.randn(rows * top_k, size, generator=random(3))
    shared = torch.randn(4, rows, size, generator=random(4))
    gates = torch.rand(rows, generator=random(6))
    total, shared_total = _sums_in_numpy(case, choice, outputs), (shared[0] + shared[1]) + (shared[2] + shared[3])
    expected = total + shared_total * gates[:, None] if segments else total
    choice = replace(choice, gates=gates.to(device) if segments else None)
    out = untouched(dtype, device, rows, size)
    given = shared.to(device) if segments else None
    combine_experts(launcher, outputs.to(device), choice, places, count, range(4), out[1:-1], shared=given)
    assert torch.equal(bits(inner_of(out)), bits(expected.to(dtype)))
    whole = _part(launcher, case, choice, outputs, shared if segments else None, 0, 1)
    assert torch.equal(whole, torch.cat([total, shared_total], 1) if segments else total)
    for ranks in sizes:
        parts = [_part(launcher, case, choice, outputs, shared if segments else None, r, ranks) for r in range(ranks)]
        out = untouched(dtype, device, rows, size)
        join_experts(launcher, torch.stack(parts).to(device), choice.gates, out[1:-1])
        assert torch.equal(bits(inner_of(out)), bits(expected.to(dtype))), ranks


def _sums_in_numpy(case, choice, outputs):
    experts = Experts(case.count, case.top_k, 64)
    places, _, _ = case.expected()
    sums = np.zeros((4, case.rows, outputs.shape[1]), np.float32)
    for row, own in enumerate(places):
        for expert, place, weight in zip(choice.experts[row].tolist(), own, choice.weights[row].cpu(), strict=True):
            sums[experts.share_of(expert), row] += outputs[place].numpy() * weight.numpy()
    return torch.from_numpy((sums[0] + sums[1]) + (sums[2] + sums[3]))


def _part(launcher, case, choice, outputs, shared, rank, ranks):
    """What one of several ranks adds up; its own places and outputs come from those of one rank."""
    held = Experts(case.count, case.top_k, 64).held_by(rank, ranks)
    own, device = replace(case, held=held), case.device
    places, first = own.places(launcher), sum(int(e) < held.start for e in case.chosen.flatten())
    own_outputs = torch.full_like(outputs, torch.nan)
    own_outputs[: int(places.starts[-1])] = outputs[first : first + int(places.starts[-1])]
    shares = range(rank * 4 // ranks, (rank + 1) * 4 // ranks)
    size = outputs.shape[1]
    out = untouched(F32, device, case.rows, size if shared is None else 2 * size)
    given = None if shared is None else shared[shares.start : shares.stop].contiguous().to(device)
    sums = own_outputs.to(device), choice, places, case.count, shares, out[1:-1]
    combine_experts(launcher, *sums, shared=given)
    return inner_of(out)


def check_weighed_inputs(launcher, dtype, size, device="cpu"):
    case = Case(9, 2, 6, range(2, 5), device)
    choice, places = chosen_places(launcher, case)
    x = torch.randn(case.rows, size, generator=random(3)).to(dtype)
    found = weigh_experts(launcher, x.to(device), choice, places).cpu()
    for row, own in enumerate(places.places.tolist()):
        for place, weight in zip(own, choice.weights[row].cpu(), strict=True):
            if place >= 0:
                assert torch.equal(found[place], (x[row].float() * weight).to(dtype))


def check_activations_of_places(launcher, dtype, size, device="cpu"):
    """Only the places in use are computed; the clamped gate is compared with float64."""
    case = Case(9, 2, 6, range(2, 5), device)
    places = case.places(launcher)
    used, entries = int(places.starts[-1]), 18
    x = torch.randn(entries, 2 * size, generator=random(0)).to(dtype)
    x[0, :3] = torch.tensor([30.0, -30.0, torch.nan])
    activation = Activation("clamped", True, 1.7, 0.8)
    out = untouched(dtype, device, entries, size)
    clamped_gate(launcher, x.to(device), activation, places.count_address, out[1:-1])
    found, everything = inner_of(out), clamped_gate(launcher, x.to(device), activation).cpu()
    assert torch.equal(bits(found[:used]), bits(everything[:used]))
    assert (bits(found[used:]) == UNTOUCHED).all(), "a place that is not in use was written"
    gate, up = x.double().chunk(2, dim=1)
    gate, up = gate.clamp(max=0.8), up.clamp(-0.8, 0.8)
    exact = gate * torch.sigmoid(1.7 * gate) * (up + 1)
    torch.testing.assert_close(everything.double(), exact, rtol=1.01 * ROUNDING[dtype], atol=1e-6, equal_nan=True)
    out = untouched(dtype, device, entries, size)
    activate(launcher, x.to(device), "silu", True, out[1:-1], places.count_address)
    written = inner_of(out)
    assert torch.equal(bits(written[:used]), bits(activate(launcher, x.to(device), "silu", True).cpu()[:used]))
    assert (bits(written[used:]) == UNTOUCHED).all(), "a place that is not in use was written"


def check_experts(launcher, device="cpu"):
    """All checks in small cases, which must detect a bug planted anywhere."""
    for name in IN_CHECK:
        check_routing(launcher, ROUTERS[name], device, segments=2, has_bias=name == "of the chosen")
        check_logits_that_are_not_finite(launcher, ROUTERS[name], device)
    check_routing(launcher, ROUTERS["softmax"], device, has_factors=True)
    case = Case(150, 3, 6, range(1, 5), device)
    check_places(launcher, case)
    check_expert_product(launcher, BF16, BF16, case, 200, 70, gathers=True, has_bias=True)
    small = Case(5, 2, 6, range(6), device)
    check_expert_product(launcher, BF16, F32, small, 264, 141, gathers=False, has_bias=False)
    check_segmented_product(launcher, BF16, 66, 160, 129, 4, device)
    for inputs, group_size, form in CODED:
        check_coded_products(launcher, BF16, inputs, group_size, form, device)
    check_sums(launcher, BF16, 5, 4, 10, 264, 4, device, sizes=(2,))
    check_weighed_inputs(launcher, BF16, 264, device)
    check_activations_of_places(launcher, BF16, 264, device)

"""The kernels of mixtures of experts: routing, places and sums to the bit, products against float64 and themselves."""

from dataclasses import replace

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.experts import CudaExperts
from paged_serve.workers.backends.torch.backend import TorchBackend
from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.checkpoint.weight_forms import Fp8Weight
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.geometry.experts import Experts
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.layers.feed_forward import ExpertWeights

from ...workers.ranks import on_ranks
from ..checks.checks_experts import (
    BF16,
    CODED,
    F32,
    FP16,
    check_a_rows_product_depends_on_nothing_else,
    check_coded_products,
    check_expert_product,
    check_experts,
    check_logits_that_are_not_finite,
    check_places,
    check_routing,
    check_segmented_product,
    check_sums,
)
from ..checks.expert_case import IN_CHECK, ROUTERS, Case, random
from ..emulated import EmulatorLauncher
from ..executors import arch_of, device_of

REST = [pytest.param(name, marks=pytest.mark.nightly) for name in ROUTERS if name not in IN_CHECK]


def test_the_kernels_of_experts_are_correct(launcher, device):
    check_experts(launcher, device)
    assert launcher.stats.bank_conflicts == 0


@pytest.mark.nightly
def test_the_kernels_of_experts_are_race_free_in_every_schedule(scheduled, device):
    check_experts(scheduled, device)


@pytest.mark.parametrize("router", [*IN_CHECK, *REST])
@pytest.mark.parametrize("segments", [1, 16])
def test_routing_has_the_bits_of_the_formula_in_numpy(launcher, device, router, segments):
    check_routing(launcher, ROUTERS[router], device, segments)
    check_logits_that_are_not_finite(launcher, ROUTERS[router], device)


@pytest.mark.parametrize(("inputs", "group_size", "form"), CODED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_codes_have_the_bits_of_those_of_numbers(launcher, device, dtype, inputs, group_size, form):
    check_coded_products(launcher, dtype, inputs, group_size, form, device)


@pytest.mark.parametrize("router", ["softmax", "of the chosen"])
def test_weights_are_multiplied_by_the_factors_of_their_experts(launcher, device, router):
    check_routing(launcher, ROUTERS[router], device, has_factors=True)


@pytest.mark.parametrize("rows", [1, 85, 86, 600])
@pytest.mark.parametrize("held", [range(6), range(2), range(4, 6)], ids=str)
def test_places_are_in_order_of_experts_and_then_of_rows(launcher, device, rows, held):
    check_places(launcher, Case(rows, 3, 6, held, device))


@pytest.mark.parametrize("dtype", [BF16, pytest.param(FP16, marks=pytest.mark.nightly)])
def test_a_rows_product_depends_on_nothing_else(launcher, device, dtype):
    check_a_rows_product_depends_on_nothing_else(launcher, dtype, device)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 200])
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 8), (64, 64), (72, 66), (136, 130), (520, 264)])
def test_products_of_any_size_are_close_to_float64(launcher, device, dtype, rows, inputs, outputs):
    case = Case(rows, 2, 6, range(1, 5), device)
    for out in (dtype, F32):
        check_expert_product(launcher, dtype, out, case, inputs, outputs, gathers=out == dtype, has_bias=out == F32)
    check_segmented_product(launcher, dtype, rows, inputs * 2, outputs, 2, device)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(("top_k", "count"), [(1, 1), (2, 2), (3, 3), (8, 60)])
@pytest.mark.parametrize("segments", [0, 4])
def test_sums_have_the_bits_of_their_formula_on_any_number_of_ranks(launcher, device, dtype, top_k, count, segments):
    check_sums(launcher, dtype, 7, top_k, count, 136, segments, device)


# ---- the whole feed-forward ----

HIDDEN, SIZE = 64, 40
MIXTURE = Experts(12, 3, SIZE, "sigmoid", True, 1.5, 4, 2, True, shared_size=64, shared_as="gated", router_bias=False)
SILU = Activation("silu")


def weights_of(backend, group, dtype=BF16, form=lambda weight: weight):
    """The weights of MIXTURE on one rank, of any backend."""
    rows = {"router": 13, "shared_gate": 64, "shared_up": 64}
    floats = {name: torch.randn(count, HIDDEN, generator=random(i)) / 4 for i, (name, count) in enumerate(rows.items())}
    shared_down = torch.randn(HIDDEN, 64, generator=random(9)) / 4
    experts = [torch.randn(3, SIZE, HIDDEN, generator=random(20 + e)) / 4 for e in range(12)]
    held, own = (
        MIXTURE.held_by(group.rank, group.size),
        slice(group.rank * 64 // group.size, (group.rank + 1) * 64 // group.size),
    )
    joined, place = torch.cat([floats["shared_gate"][own], floats["shared_up"][own]]), (backend.device, dtype)
    return ExpertWeights(
        router=backend.head(floats["router"].to(*place)),
        correction=(torch.randn(12, generator=random(50)) / 4).to(backend.device),
        gate_up=form(stacked_experts("e", [experts[e][:2].flatten(0, 1).to(*place) for e in held])),
        down=form(stacked_experts("e", [experts[e][2].t().contiguous().to(*place) for e in held])),
        gate_up_bias=None,
        down_bias=None,
        shared_gate_up=backend.linear(joined.to(*place)),
        shared_down=shared_down[:, own].contiguous().to(*place),
    )


ALONE = TensorParallelGroup()


def mixture(launcher, group=ALONE, *, shared=True, **options):
    backend = CudaBackend(launcher, arch_of(launcher), 2, device=device_of(launcher))
    weights, experts = weights_of(backend, group, **options), MIXTURE
    if not shared:
        router = backend.head(weights.router.weight[: MIXTURE.count].contiguous())
        weights = replace(weights, router=router, shared_gate_up=None, shared_down=None)
        experts = replace(MIXTURE, shared_size=0, shared_as="sum")
    return backend.experts(experts, SILU, weights, group)


@pytest.fixture(scope="module")
def x():
    return torch.randn(23, HIDDEN, generator=random(0)).to(BF16)


def test_a_mixture_is_as_accurate_as_plain_torch_and_a_row_depends_on_nothing_else(launcher, x):
    oracle, group = TorchBackend(), ALONE
    exact = oracle.experts(MIXTURE, SILU, _wide(weights_of(oracle, group)), group)(x.float())
    by_torch = oracle.experts(MIXTURE, SILU, weights_of(oracle, group), group)(x)
    mixed, device = mixture(launcher), device_of(launcher)
    ours = lambda rows: mixed(rows.to(device)).cpu()  # noqa: E731
    found = ours(x)
    assert (found - exact).norm(dim=1).median() < 1.1 * (by_torch - exact).norm(dim=1).median()
    order = torch.randperm(len(x), generator=random(1))
    assert torch.equal(ours(x[order]), found[order])
    assert torch.equal(torch.cat([ours(row) for row in x.split([1, 20, 2])]), found)


def _wide(weights):
    """The same weights in float32."""
    oracle = TorchBackend()
    return ExpertWeights(
        oracle.head(weights.router.weight.float()),
        weights.correction,
        weights.gate_up.float(),
        weights.down.float(),
        None,
        None,
        oracle.linear(weights.shared_gate_up.weight.float()),
        weights.shared_down.float(),
    )


def test_passes_of_fewer_rows_change_no_bit(launcher, x, monkeypatch):
    x = x.to(device_of(launcher))
    expected = mixture(launcher)(x)
    monkeypatch.setattr("paged_serve.workers.backends.cuda.experts.PLACES_AT_ONCE", 8 * MIXTURE.top_k)
    assert torch.equal(mixture(launcher)(x), expected)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_have_the_bits_of_one(x, tmp_path, size):
    """The shared expert's first product is the library's, whose shape depends on the number of ranks."""
    launcher = EmulatorLauncher()
    routed, whole = (mixture(launcher, shared=shared)(x) for shared in (False, True))
    work = lambda group: [mixture(launcher, group, shared=shared)(x) for shared in (False, True)]  # noqa: E731
    for found, found_whole in on_ranks(size, tmp_path / "rendezvous", work):
        assert torch.equal(found, routed)
        torch.testing.assert_close(found_whole, whole, rtol=2**-6, atol=0.02)


def test_quantized_experts_are_dequantized_and_the_log_says_so(x, caplog):
    launcher = EmulatorLauncher()

    def quantized(weight):
        scales = weight.float().abs().amax(1).clamp(min=1e-6) / 448
        return Fp8Weight((weight.float() / scales[:, None]).to(torch.float8_e4m3fn), scales)

    with caplog.at_level("INFO"):
        found = mixture(launcher, form=quantized)(x)
    assert "experts quantized to Fp8Weight are dequantized to torch.bfloat16 on CUDA" in caplog.text
    assert torch.equal(found, mixture(launcher, form=lambda weight: quantized(weight).dequantized().to(BF16))(x))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": 44}, "the experts' intermediate size, 44, must be a multiple of 8"),
        ({"shared_size": 60}, "the shared expert's intermediate size on each of 1 ranks, 60, must"),
        ({"count": 2000, "groups": 1, "top_groups": 1}, "2000 experts are more than the CUDA kernels' 1024"),
    ],
)
def test_sizes_that_the_kernels_do_not_support_are_refused_by_name(changes, message):
    launcher, group = EmulatorLauncher(), ALONE
    backend = CudaBackend(launcher, "sm_90a", 2, device="cpu")
    with pytest.raises(ConfigError, match=message):
        CudaExperts(launcher, replace(MIXTURE, **changes), SILU, weights_of(backend, group), group)

"""Models have the outputs recorded in `golden`, bit for bit, in each order of sums, so that all machines agree.

After an intended change of arithmetic, `just golden` records them again.
"""

import pytest

from paged_serve.workers.kernels.cpu import library as cpu

from . import golden

CASES = [(order, name) for order, names in golden.RECORDED.items() for name in names]


# All instruction sets have the same bits (test_isa_bits.py), so the best one with all models and the others with some
# make the fast run.
CASES_OF_ISAS = [
    pytest.param(
        isa, case, id="-".join((isa, *case)), marks=[pytest.mark.nightly] if place and (number + place) % 8 else []
    )
    for place, isa in enumerate(cpu.runnable_isas())
    for number, case in enumerate(CASES)
]


@pytest.mark.parametrize(("isa", "case"), CASES_OF_ISAS)
def test_a_model_matches_its_golden_record(isa, case, tmp_path):
    order, name = case
    assert golden.outputs_of(isa, name, tmp_path, order) == golden.recorded(order)[name]


@pytest.mark.parametrize(("order", "names"), golden.RECORDED.items())
def test_every_model_has_a_golden_record(order, names):
    assert list(golden.recorded(order)) == names


def test_the_orders_differ_in_every_model_with_products_of_16_bits():
    """Except of int4 with float16: sums of 32 products of codes are mostly exact, and its attention has one order."""
    dot, tile = golden.recorded("dot"), golden.recorded("tile")
    equal = {name for name in tile if tile[name] == dot[name]}
    assert equal - {name for name in tile if "int8" in name} == {"llama int4 fp16"}


@pytest.mark.parametrize("isa", cpu.runnable_isas()[:1])
def test_a_model_without_such_products_gives_the_same_bits_in_both_orders(isa, tmp_path):
    for name in ("llama int8 fp16", "llama fp32"):
        home = tmp_path / name
        home.mkdir()
        assert golden.outputs_of(isa, name, home, "tile") == golden.recorded("dot")[name]

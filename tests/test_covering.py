"""The choice among a product's tests leaves out no value, or no pair of values, and much of the product."""

from itertools import combinations, product

import pytest

from .covering import covering

SIZES = {"isa": 4, "order": 2, "head_dim": 11, "dtype": 5}
PRODUCT = [dict(zip(SIZES, values, strict=True)) for values in product(*map(range, SIZES.values()))]


def combined(cases, strength):
    return {values for case in cases for values in combinations(sorted(case.items()), strength)}


@pytest.mark.parametrize(("strength", "smallest"), [(1, 11), (2, 55)])
@pytest.mark.parametrize("cases", [PRODUCT, PRODUCT[::3], PRODUCT[7:19]], ids=["product", "a third", "a part"])
def test_every_combination_that_occurs_is_chosen_in_few_cases(cases, strength, smallest):
    chosen = covering(cases, strength)
    assert combined([cases[place] for place in chosen], strength) == combined(cases, strength)
    if cases is PRODUCT:
        assert smallest <= len(chosen) <= smallest + 5


def test_a_single_parameter_is_covered_by_each_of_its_values():
    assert covering([{"seed": 0}, {"seed": 1}, {"seed": 0}], 2) == {0, 1}


def test_nothing_is_chosen_of_nothing():
    assert covering([], 2) == set()

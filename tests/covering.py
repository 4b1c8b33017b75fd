"""Which tests of a product of parameters run: all, those in which every pair of values occurs, or every value once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import pytest

WHOLE, PAIRS, VALUES = "whole", "pairs", "values"
STRENGTHS = {PAIRS: 2, VALUES: 1}
# Where two values together have failed that passed apart, and a test costs a few milliseconds.
OF_KERNELS = tuple(f"tests/{folder}/" for folder in ("workers/kernels", "workers/order_of_sums", "cuda/kernels"))


def covering(cases: Sequence[Mapping[str, int]], strength: int) -> set[int]:
    """Indices of a few `cases` that together have every combination of `strength` values that any case has.

    The greedy algorithm for set cover: it always adds the first case with the most combinations that are still missing.
    A case maps names of parameters to numbers that stand for their values.
    """
    combined = [set(combinations(sorted(case.items()), min(strength, len(case)))) for case in cases]
    left, chosen = set[tuple[tuple[str, int], ...]]().union(*combined), set[int]()
    while left:
        best = max(range(len(cases)), key=lambda place: len(combined[place] & left))
        left -= combined[best]
        chosen.add(best)
    return chosen


def left_out(items: Iterable[pytest.Item], products: str | None) -> list[pytest.Item]:
    """Tests that add no combination of values to those of their function; none of a function without parameters.

    `products` is WHOLE, PAIRS or VALUES; None is PAIRS for tests of kernels, and VALUES for the others.
    """
    by_function = defaultdict[str, list[pytest.Function]](list)
    for item in items if products != WHOLE else ():
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            by_function[item.nodeid.partition("[")[0]].append(item)
    found: list[pytest.Item] = []
    for name, tests in by_function.items():
        strength = STRENGTHS[products or (PAIRS if name.startswith(OF_KERNELS) else VALUES)]
        # An entry of a list of parameters is one object in all tests that have it, and need not be hashable.
        cases = [{name: id(value) for name, value in test.callspec.params.items()} for test in tests]
        if all(len(case) <= strength for case in cases):
            continue
        chosen = covering(cases, strength)
        found += (test for place, test in enumerate(tests) if place not in chosen)
    return found

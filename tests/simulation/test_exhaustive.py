"""All orders of events of a few requests: none breaks the accounting, loses a token or leaves a sequence waiting."""

import logging

import pytest

from paged_serve.protocol.messages.loading.startup import KVGroup

from .exhaustive import Prompt, Scope, explore

STORY, STATE = (1, 2, 3), KVGroup(is_state=True)
ALL_GO_WELL = {"aborts": 0, "crashes": 0, "nans": 0}


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)  # poison requests are expected
    yield
    logging.disable(logging.NOTSET)


def test_every_order_of_two_requests_and_a_non_finite_result_holds_the_invariants():
    explored = explore(Scope((Prompt(STORY, 4), Prompt(STORY, 4)), aborts=0, crashes=0))
    assert explored.states > 100
    assert explored.preemptions


@pytest.mark.parametrize(
    "scope",
    [
        Scope((Prompt(STORY, 4), Prompt(STORY, 3)), **ALL_GO_WELL, windows=(2,), block_size=1, num_blocks=6),
        Scope(
            (Prompt((*STORY, 4, 5), 3), Prompt((*STORY, 4, 6), 3)),
            **ALL_GO_WELL,
            windows=(2, 0),
            block_size=1,
            num_blocks=13,
            max_num_batched_tokens=2,
        ),
        Scope(
            (Prompt((*STORY, 4, 5), 3), Prompt((*STORY, 4, 6), 3)),
            **ALL_GO_WELL,
            windows=(STATE, 0),
            block_size=2,
            num_blocks=9,
            max_num_batched_tokens=2,
        ),
    ],
    ids=["one window", "full and window", "state and full"],
)
def test_every_order_of_two_requests_with_windows_holds_the_invariants(scope):
    assert explore(scope).states > 100


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "scope",
    [
        Scope((Prompt(STORY, 4), Prompt(STORY, 4)), windows=(2,), block_size=1, num_blocks=7, crashes=0),
        Scope((Prompt(STORY, 3), Prompt(STORY, 3)), windows=(2, 0), block_size=1, num_blocks=13, crashes=0, aborts=0),
        Scope((Prompt(STORY, 3), Prompt(STORY, 3)), windows=(STATE, 0), num_blocks=8, crashes=0, aborts=0),
        Scope((Prompt(STORY, 2), Prompt(STORY, 2))),
        Scope((Prompt(STORY, 3, n=2), Prompt((9,), 2)), pipeline_depth=1),
        Scope((Prompt(STORY, 4), Prompt(STORY, 3), Prompt((9,), 2)), nans=0),
        Scope((Prompt(STORY, 4), Prompt(STORY, 3), Prompt((9,), 2)), crashes=0),
    ],
    ids=[
        "window",
        "full and window",
        "state and full",
        "two",
        "siblings and one",
        "three, crashed and aborted",
        "three, not finite and aborted",
    ],
)
def test_every_order_of_a_few_requests_holds_the_invariants(scope):
    print(explore(scope))

"""The output of abandoned requests is the start of the answers to equal requests."""

import pytest

from paged_serve.engine_core.admission import abandoned_requests
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..conftest import CLIENT

LOST = b"client:1"
PARAMS = {"max_tokens": 12, "seed": 3}


def ask_and_lose(driver, prompt=10, steps=6, **more):
    """Run some steps, then lose the client."""
    driver.engine.add_client(LOST, driver.now)
    request_id = driver.add(prompt, client=LOST, **{**PARAMS, **more})
    driver.step(steps)
    driver.engine.remove_client(LOST, driver.now)
    return request_id


def alone(drive, **more):
    driver = drive()
    request_id = driver.add(10, **{**PARAMS, **more})
    driver.run()
    return driver.tokens[request_id]


@pytest.mark.parametrize("n", [1, 3])
def test_an_equal_request_continues_an_abandoned_one(drive, n):
    driver = drive()
    ask_and_lose(driver, n=n)
    num_computed = driver.engine.counters.prompt_tokens + driver.engine.counters.generation_tokens
    again = driver.add(10, n=n, **PARAMS)
    had = [len(driver.tokens[again + index]) for index in range(n)]
    assert min(had) > 2, "delivered at once"
    driver.run()
    undisturbed = drive()
    expected = undisturbed.add(10, n=n, **PARAMS)
    undisturbed.run()
    for index in range(n):
        assert driver.tokens[again + index] == undisturbed.tokens[expected + index]
        assert driver.ends[again + index].finish_reason is FinishReason.LENGTH
    counters = driver.engine.counters
    assert counters.prompt_tokens + counters.generation_tokens - num_computed <= n * (12 - min(had) + 8)
    assert len(driver.engine.admission.abandoned) == driver.engine.admission.abandoned.num_tokens == 0


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4},
        {"max_tokens": 13},
        {"tenant": "another"},
        {"salt": "another"},
        {"prompt": 11},
        {"n": 2},
        {"resume": [[7]]},
    ],
)
def test_a_different_request_reuses_nothing(drive, other):
    driver = drive()
    ask_and_lose(driver)
    request_id = driver.add(other.pop("prompt", 10), **{**PARAMS, **other})
    assert driver.tokens[request_id] == []
    assert len(driver.engine.admission.abandoned) == 1


@pytest.mark.parametrize("params", [{"logprobs": 0}, {"prompt_logprobs": 0}, {"skip_reading_prefix_cache": True}])
def test_output_that_cannot_be_resent_is_computed_again(drive, params):
    driver = drive()
    ask_and_lose(driver, **params)
    assert len(driver.engine.admission.abandoned) == 0
    request_id = driver.add(10, **PARAMS, **params)
    driver.run()
    assert driver.tokens[request_id] == alone(drive, **params)


def test_two_equal_requests_reuse_one_each(drive):
    driver = drive()
    ask_and_lose(driver)
    first, second = driver.add(10, **PARAMS), driver.add(10, **PARAMS)
    assert driver.tokens[first]
    assert not driver.tokens[second]
    driver.run()
    assert driver.tokens[first] == driver.tokens[second] == alone(drive)


def test_abandoned_requests_are_kept_for_a_limited_time(drive):
    driver = drive()
    ask_and_lose(driver)
    driver.now += abandoned_requests.KEPT_S
    request_id = driver.add(10, **PARAMS)
    assert driver.tokens[request_id] == []
    assert len(driver.engine.admission.abandoned) == driver.engine.admission.abandoned.num_tokens == 0


def test_the_oldest_abandoned_requests_are_dropped_first(drive, monkeypatch):
    driver = drive()
    monkeypatch.setattr(abandoned_requests, "MAX_KEPT_TOKENS", 40)
    for prompt in (10, 11, 12):
        ask_and_lose(driver, prompt)
    kept = driver.engine.admission.abandoned
    assert len(kept) == 2
    assert kept.num_tokens <= 40
    assert not driver.tokens[driver.add(10, **PARAMS)]
    assert driver.tokens[driver.add(12, **PARAMS)]


@pytest.mark.parametrize("why", ["full", "draining", "invalid", "in use"])
def test_a_refused_request_leaves_abandoned_output_for_the_next(drive, why):
    driver = drive(max_num_queued_requests=1, max_num_seqs=1)
    ask_and_lose(driver)
    if why == "full":
        driver.add(5, max_tokens=30)
        driver.step(2)
        driver.add(6, max_tokens=30)
    running = driver.add(9, max_tokens=30) if why == "in use" else None
    driver.engine.admission.draining = why == "draining"
    driver.add(10, request_id=running, priority=int(why == "invalid"), **PARAMS)
    assert len(driver.rejections) == 1
    assert len(driver.engine.admission.abandoned) == 1
    driver.engine.admission.draining = False
    driver.run()
    assert driver.tokens[driver.add(10, **PARAMS)], "delivered at once"


def test_an_abort_is_final(drive):
    driver = drive()
    request_id = driver.add(10, **PARAMS)
    driver.step(6)
    driver.abort(request_id, client=CLIENT)
    assert len(driver.engine.admission.abandoned) == 0


def test_a_candidate_is_computed_beyond_what_it_reuses(drive):
    driver = drive()
    ask_and_lose(driver, steps=20, max_tokens=40)
    driver.engine.admission.core_poison.candidates_withheld(CLIENT, 1)
    driver.engine.admission.core_poison.record(1)
    assert driver.engine.admission.core_poison.next_turn(driver.now) == CLIENT
    candidate = driver.add(10, isolation_tokens=8, **{**PARAMS, "max_tokens": 40})
    had = len(driver.tokens[candidate])
    assert had > 8
    while driver.scheduler.worker_poison.first() is not None:
        assert driver.step()
    assert len(driver.tokens[candidate]) >= had + 8

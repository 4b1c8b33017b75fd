"""One request among many kills workers: it ends with an error, and the others finish."""

import pytest

from paged_serve.engine_core.engine.endings import DEADLY
from paged_serve.engine_core.simulation.fake_workers.fake_worker import FakeWorker, WorkerDied
from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS
from paged_serve.protocol.messages.sampling_params import FinishReason

POISON = 7
MANY = {"num_blocks": 1024, "max_num_seqs": 64}


def replace_workers(driver, poison=None, *, from_outside=False):
    driver.plans.clear()
    driver.answers.clear()
    epoch = driver.engine.worker_epoch + 1
    facts, block_size = driver.facts, driver.facts.block_size
    driver.worker = FakeWorker(facts.num_blocks, block_size, facts.vocab_size, epoch, poison=poison)
    driver.take(driver.engine.workers_replaced(epoch, driver.now, from_outside=from_outside))


def run(driver, poison=None) -> int:
    """Run to the end; returns how many worker groups died."""
    deaths = 0
    for _ in range(5000):
        if driver.engine.is_idle:
            return deaths
        try:
            driver.step()
        except WorkerDied:
            deaths += 1
            replace_workers(driver, poison)
    raise AssertionError("never ends")


def alone_in_flight(driver) -> int:
    """The stream of the candidate in flight."""
    [stream] = {sequence.stream_id for plan in driver.scheduler.in_flight for sequence in plan.sequences()}
    return stream


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_63_of_64_requests_finish_and_the_poison_request_costs_three_worker_groups(drive, depth, caching):
    reference = drive(**MANY)
    streams = [reference.add([i + 1] * 5, max_tokens=12, seed=i) for i in range(64)]
    reference.run()
    driver = drive(**MANY, pipeline_depth=depth, prefix_caching=caching)
    for i in range(64):
        driver.add([i + 1] * 5, max_tokens=12, seed=i)
    replace_workers(driver, POISON)
    assert run(driver, POISON) == 3
    assert driver.engine.num_poison_requests == 1
    for i, stream in enumerate(streams):
        if i == POISON:
            assert driver.ends[stream].finish_reason is FinishReason.ERROR
            assert driver.ends[stream].error == DEADLY
        else:
            assert driver.tokens[stream] == reference.tokens[stream]


def test_two_poison_requests_cost_three_worker_groups_each(drive):
    driver = drive(**MANY)
    for i in range(64):
        driver.add([i + 1] * 5, max_tokens=12, seed=POISON if i in (5, 50) else 100 + i)
    replace_workers(driver, POISON)
    assert run(driver, POISON) == 6
    errors = [stream for stream, end in driver.ends.items() if end.finish_reason is FinishReason.ERROR]
    assert errors == [6000, 51000]


def test_a_poison_request_that_kills_in_its_last_chunk_is_found(drive):
    driver = drive(num_blocks=64, max_num_batched_tokens=8)
    kept = driver.add([3] * 5, max_tokens=30, seed=1)
    poison = driver.add([4] * 40, max_tokens=5, seed=POISON)
    replace_workers(driver, POISON)
    assert run(driver, POISON) == 3
    assert driver.ends[poison].finish_reason is FinishReason.ERROR
    assert len(driver.tokens[kept]) == 30


@pytest.mark.parametrize("from_outside", [True, False])
def test_occasional_worker_deaths_harm_no_request(drive, from_outside):
    driver = drive()
    streams = [driver.add([i + 1] * 5, max_tokens=20, seed=i) for i in range(4)]
    for _ in range(12):
        driver.step(12)  # by themselves once all candidates are cleared
        driver.plan()
        replace_workers(driver, from_outside=from_outside)
        if driver.engine.is_idle:
            break
    driver.run()
    assert all(len(driver.tokens[stream]) == 20 for stream in streams)


def test_external_kills_of_workers_make_no_candidates(drive):
    driver = drive()
    stream = driver.add([1] * 5, max_tokens=20, seed=1)
    for _ in range(10):
        assert driver.plan() is not None
        replace_workers(driver, from_outside=True)
    driver.run()
    assert len(driver.tokens[stream]) == 20


def test_each_candidate_runs_alone_until_it_has_passed_the_steps_in_flight_at_the_crash(drive):
    driver = drive(pipeline_depth=3)
    streams = [driver.add([i + 1] * 5, max_tokens=20, seed=i) for i in range(3)]
    driver.step(4)
    driver.plan()
    num_in_flight = len(driver.scheduler.in_flight)
    assert num_in_flight == 3
    replace_workers(driver)
    for stream in streams:
        for before in range(len(driver.tokens[stream]), len(driver.tokens[stream]) + num_in_flight):
            assert driver.plan() is not None
            assert driver.plan() is None, "nothing is planned ahead of a candidate's token"
            assert alone_in_flight(driver) == stream
            driver.execute()
            driver.apply()
            assert len(driver.tokens[stream]) == before + 1
    driver.plan()
    assert len(driver.scheduler.running) == 3, "all are cleared and run together again"
    driver.execute()
    driver.run()
    assert all(len(driver.tokens[stream]) == 20 for stream in streams)


@pytest.mark.parametrize("num_deaths", [1, 2])
def test_a_harmless_candidate_survives_a_death_in_its_isolation_and_no_two(drive, num_deaths):
    driver = drive()
    streams = [driver.add([i + 1] * 5, max_tokens=20, seed=i) for i in range(3)]
    driver.plan()
    replace_workers(driver)
    for _ in range(num_deaths):
        driver.plan()
        assert alone_in_flight(driver) == streams[0], "isolated again, before the others"
        replace_workers(driver)
    driver.run()
    assert [len(driver.tokens[stream]) for stream in streams] == [20 if num_deaths < DEADLY_ISOLATIONS else 0, 20, 20]
    assert driver.engine.num_poison_requests == num_deaths - 1


def test_deaths_in_isolations_of_different_candidates_end_none(drive):
    driver = drive()
    streams = [driver.add([i + 1] * 5, max_tokens=20, seed=i) for i in range(3)]
    driver.plan()
    replace_workers(driver)
    for stream in streams:
        driver.plan()
        assert alone_in_flight(driver) == stream
        replace_workers(driver)
        driver.step()
        assert len(driver.tokens[stream]) == 1, "cleared"
    driver.run()
    assert all(len(driver.tokens[stream]) == 20 for stream in streams)


def test_later_requests_wait_until_the_candidates_are_cleared(drive):
    driver = drive()
    driver.add([1] * 5, max_tokens=20, seed=1)
    driver.plan()
    replace_workers(driver)
    late = driver.add([2] * 5, max_tokens=20, seed=2)
    driver.plan()
    assert alone_in_flight(driver) != late
    driver.execute()
    driver.apply()
    driver.plan()
    assert len(driver.scheduler.running) == 2
    driver.execute()
    driver.run()


def test_an_aborted_candidate_delays_nothing(drive):
    driver = drive()
    candidate, other = (driver.add([i + 1] * 5, max_tokens=20, seed=i) for i in range(2))
    driver.plan()
    replace_workers(driver)
    driver.plan()
    driver.abort(candidate)
    driver.execute()
    driver.run()
    assert len(driver.tokens[other]) == 20


def test_siblings_of_one_request_are_candidates_one_by_one(drive):
    reference, driver = drive(), drive()
    requests = [each.add([1] * 9, max_tokens=10, seed=1, n=3) for each in (reference, driver)]
    reference.run()
    driver.step(3)
    driver.plan()
    replace_workers(driver)
    driver.run()
    streams = [requests[1] + index for index in range(3)]
    assert [driver.tokens[stream] for stream in streams] == [reference.tokens[stream] for stream in streams]


def test_the_next_candidate_waits_for_the_steps_of_an_aborted_one(drive):
    driver = drive(pipeline_depth=3, max_num_batched_tokens=16)
    long = driver.add(20, max_tokens=4)
    short = driver.add([9, 9, 9], max_tokens=4)
    driver.plan(), driver.plan()
    replace_workers(driver)
    driver.plan()
    driver.execute()
    driver.abort(long)
    assert driver.plan() is None, "a death caused by the aborted one would count for the next candidate"
    driver.apply()
    driver.plan()
    assert alone_in_flight(driver) == short


def test_a_candidate_may_use_every_block(drive):
    driver = drive(num_blocks=4, block_size=4, prefix_caching=False)
    stream = driver.add(15, max_tokens=2)
    driver.plan()
    replace_workers(driver)
    assert run(driver) == 0
    assert len(driver.tokens[stream]) == 2


def test_a_poison_request_that_is_preempted_while_it_kills_is_found(drive):
    driver = drive(pipeline_depth=2)
    kept = driver.add([3] * 5, max_tokens=30, seed=1)
    poison = driver.add([4] * 5, max_tokens=30, seed=POISON)
    replace_workers(driver, POISON)
    deaths = 0
    while not driver.engine.is_idle:
        try:
            driver.step()
        except WorkerDied:
            deaths += 1
            if deaths == 1:
                [sequence] = [each for each in driver.scheduler.running if each.seed == POISON]
                driver.scheduler.preempt(sequence)
            replace_workers(driver, POISON)
    assert deaths == 3
    assert driver.ends[poison].finish_reason is FinishReason.ERROR
    assert len(driver.tokens[kept]) == 30

"""One request that kills workers among many: the many end right, the one ends with an error."""

import pytest

from paged_serve.engine_core.engine import DEADLY
from paged_serve.engine_core.quarantine import DEATHS_UNTIL_ALONE, DEATHS_UNTIL_ERROR
from paged_serve.engine_core.simulation.fake_worker import FakeWorker, WorkerDied
from paged_serve.protocol.sampling_params import FinishReason

POISON = 7


def replace_workers(driver, poison=None):
    driver.plans.clear()
    driver.answers.clear()
    epoch = driver.engine.worker_epoch + 1
    facts, block_size = driver.facts, driver.config.cache.block_size
    driver.worker = FakeWorker(facts.num_blocks, block_size, facts.vocab_size, epoch, poison=poison)
    driver.take(driver.engine.workers_replaced(epoch, driver.now))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_63_of_64_end_right_and_the_one_that_kills_ends_with_an_error(drive, depth):
    lonely = drive(num_blocks=1024, max_num_seqs=64)
    streams = [lonely.add([i + 1] * 5, max_tokens=12, seed=i) for i in range(64)]
    lonely.run()
    driver = drive(num_blocks=1024, max_num_seqs=64, pipeline_depth=depth)
    for i in range(64):
        driver.add([i + 1] * 5, max_tokens=12, seed=i)
    replace_workers(driver, POISON)
    deaths = 0
    while not driver.engine.is_idle:
        try:
            driver.step()
        except WorkerDied:
            deaths += 1
            replace_workers(driver, POISON)
    assert deaths == DEATHS_UNTIL_ERROR
    for i, stream in enumerate(streams):
        if i == POISON:
            assert driver.ends[stream].finish_reason is FinishReason.ERROR
            assert driver.ends[stream].error == DEADLY
        else:
            assert driver.tokens[stream] == lonely.tokens[stream]


def test_workers_that_die_now_and_then_make_nobody_a_suspect(drive):
    driver = drive()
    streams = [driver.add([i + 1] * 5, max_tokens=20, seed=i) for i in range(4)]
    for _ in range(3 * DEATHS_UNTIL_ERROR):
        driver.step(2)
        driver.plan()
        replace_workers(driver)
    driver.run()
    assert all(len(driver.tokens[stream]) == 20 for stream in streams)


def test_a_suspect_is_alone_until_it_has_a_token_more(drive):
    driver = drive()
    for i in range(3):
        driver.add([i + 1] * 5, max_tokens=20, seed=i)
    for _ in range(DEATHS_UNTIL_ALONE):
        assert len(driver.plan().new_rows) == 3
        replace_workers(driver)
    assert len(driver.plan().new_rows) == 1
    assert driver.plan() is None
    driver.execute()
    driver.apply()
    assert len(driver.plan().new_rows) == 0, "the next suspect joins while others run"
    driver.execute()
    driver.run()


def test_a_suspect_that_got_beyond_its_place_has_company_again(drive):
    driver = drive()
    driver.add([1] * 5, max_tokens=20, seed=1)
    for _ in range(DEATHS_UNTIL_ALONE):
        driver.plan()
        replace_workers(driver)
    driver.add([2] * 5, max_tokens=20, seed=2)
    assert len(driver.plan().new_rows) == 1
    driver.execute()
    driver.apply()
    assert len(driver.plan().new_rows) == 1
    driver.execute()
    driver.run()

"""LoRA adapters in the engine core: their places, the requests that wait for one, and what ends them."""

import pytest

from paged_serve.engine_core.engine.endings import DEADLY_ADAPTER
from paged_serve.engine_core.simulation.fake_workers.fake_worker import FakeWorker
from paged_serve.engine_core.simulation.scenarios.adapters import adapter_named
from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded
from paged_serve.protocol.messages.sampling_params import FinishReason

A, B, C = map(adapter_named, "abc")


def tokens_of(drive, prompt, adapter, **params):
    """The output of one request alone."""
    driver = drive(max_loras=3)
    stream = driver.add(prompt, adapter=adapter, **params)
    driver.run()
    return driver.tokens[stream]


def replace_workers(driver, *, from_outside=False):
    driver.plans.clear()
    driver.answers.clear()
    driver.loads.clear()
    driver.digests.clear()
    epoch = driver.engine.worker_epoch + 1
    facts = driver.facts
    driver.worker = FakeWorker(facts.num_blocks, facts.block_size, facts.vocab_size, epoch)
    driver.worker.digest_at = lambda place: driver.digests[place] if place else ""
    driver.take(driver.engine.workers_replaced(epoch, driver.now, from_outside=from_outside))


def test_requests_of_many_adapters_in_one_batch_give_each_its_output_alone(drive):
    driver = drive(max_loras=2)
    streams = {name: driver.add(9, max_tokens=8, seed=1, adapter=name) for name in (None, A, B, C)}
    driver.run()
    for name, stream in streams.items():
        assert driver.tokens[stream] == tokens_of(drive, 9, name, max_tokens=8, seed=1)
    assert len({tuple(driver.tokens[stream]) for stream in streams.values()}) == 4


def test_the_prefix_cache_does_not_mix_adapters(drive):
    driver = drive(max_loras=2)
    for adapter, num_cached in ((None, 0), (A, 0), (B, 0), (A, 8), (None, 8)):
        stream = driver.add(9, max_tokens=2, adapter=adapter)
        driver.run()
        assert driver.firsts[stream].num_cached_tokens == num_cached


def test_base_requests_never_wait_for_an_adapter(drive):
    driver = drive(max_loras=1)
    driver.loads_at_once = False
    waiting = driver.add(5, max_tokens=3, adapter=A)
    base = driver.add(5, max_tokens=3)
    driver.step(5)
    assert base in driver.ends
    assert not driver.tokens[waiting]
    driver.finish_load()
    driver.run()
    assert len(driver.tokens[waiting]) == 3


def test_an_adapter_without_requests_gives_its_place_to_the_next_the_least_recently_used_first(drive):
    driver = drive(max_loras=2)
    for adapter in (A, B, A):
        driver.add(5, max_tokens=2, adapter=adapter)
        driver.run()
    driver.loads_at_once = False
    driver.add(5, max_tokens=2, adapter=C)
    driver.send_loads()
    [load] = driver.loads
    assert (load.place, load.adapter) == (2, C)


def test_a_place_is_not_reused_while_a_step_with_its_row_is_unanswered(drive):
    driver = drive(max_loras=1, pipeline_depth=2)
    stream = driver.add(5, max_tokens=20, adapter=A)
    driver.plan()
    driver.abort(stream)
    driver.add(5, max_tokens=2, adapter=B)
    driver.loads_at_once = False
    driver.send_loads()
    assert not driver.loads
    driver.execute()
    driver.apply()
    driver.send_loads()
    assert driver.loads


def test_a_busy_adapter_does_not_keep_its_place_from_others(drive):
    """Requests for A arrive in each step; those for B and C are served all the same, in turn."""
    driver = drive(max_loras=1, max_num_seqs=4)
    driver.add(5, max_tokens=6, adapter=A)
    driver.step(2)
    others = [driver.add(5, max_tokens=2, adapter=B), driver.add(5, max_tokens=2, adapter=C)]
    later = []
    for _ in range(40):
        later.append(driver.add(5, max_tokens=6, adapter=A))
        driver.step()
    assert all(stream in driver.ends for stream in others)
    driver.run()
    assert all(stream in driver.ends for stream in later)


def test_a_busy_adapter_keeps_its_place_no_longer_when_workers_are_replaced(drive):
    """Only the requests that it had when B came run before B, however often they begin again."""
    driver = drive(max_loras=1, max_num_seqs=4)
    driver.add(5, max_tokens=6, adapter=A)
    driver.step(2)
    other, later = driver.add(5, max_tokens=2, adapter=B), []
    for _ in range(6):
        replace_workers(driver, from_outside=True)
        later.append(driver.add(5, max_tokens=6, adapter=A))
        driver.step(3)
    assert other in driver.ends
    driver.run()
    assert all(stream in driver.ends for stream in later)


def test_an_adapter_that_is_closed_for_another_opens_again_when_that_is_aborted(drive):
    driver = drive(max_loras=1)
    driver.add(5, max_tokens=30, adapter=A)
    driver.step(2)
    other = driver.add(5, max_tokens=2, adapter=B)
    driver.step()
    held = driver.add(5, max_tokens=2, adapter=A)
    driver.step(2)
    assert not driver.tokens[held]
    driver.abort(other)
    driver.step(3)
    assert driver.tokens[held]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_refused_adapter_ends_only_its_requests_with_an_error_that_names_it(drive, num_ranks):
    driver = drive(max_loras=2)
    driver.loads_at_once = False
    base, bad = driver.add(5, max_tokens=3), driver.add(5, max_tokens=3, adapter=A, n=2)
    driver.send_loads()
    load = driver.loads[0]
    if num_ranks == 2:
        driver.finish_load("rank 64 is too large", num_ranks, 0, load)
        assert not driver.rejections  # the other rank may still read the place
    driver.finish_load("" if num_ranks == 2 else "rank 64 is too large", num_ranks, num_ranks - 1, load)
    [rejected] = driver.rejections
    assert (rejected.request_id, rejected.param) == (bad, "model")
    assert rejected.message == "LoRA adapter 'a' was not loaded: rank 64 is too large"
    driver.run()
    assert len(driver.tokens[base]) == 3


def test_after_the_workers_are_replaced_rows_wait_until_their_adapter_is_loaded_again(drive):
    driver = drive(max_loras=1, pipeline_depth=2)
    first, second = driver.add(5, max_tokens=9, seed=1, adapter=A), driver.add(5, max_tokens=9, seed=2)
    driver.step(4)
    replace_workers(driver, from_outside=True)
    driver.loads_at_once = False
    driver.step(3)
    assert len(driver.tokens[first]) < len(driver.tokens[second])
    driver.finish_load()
    driver.run()
    assert driver.tokens[first] == tokens_of(drive, 5, A, max_tokens=9, seed=1)


def test_requests_in_the_queue_wait_for_their_adapter_again_after_the_workers_are_replaced(drive):
    driver = drive(max_loras=1, max_num_seqs=1)
    first, queued = (driver.add(5, max_tokens=9, seed=seed, adapter=A) for seed in (1, 2))
    driver.step(3)
    replace_workers(driver, from_outside=True)
    driver.loads_at_once = False
    driver.abort(first)
    driver.step(3)
    assert not driver.tokens[queued]
    driver.finish_load()
    driver.run()
    assert driver.tokens[queued] == tokens_of(drive, 5, A, max_tokens=9, seed=2)


def test_an_adapter_that_cannot_be_loaded_again_ends_its_running_requests_with_an_error(drive):
    driver = drive(max_loras=1)
    stream = driver.add(5, max_tokens=9, adapter=A)
    driver.step(3)
    num_tokens = len(driver.tokens[stream])
    replace_workers(driver, from_outside=True)
    driver.loads_at_once = False
    driver.send_loads()
    driver.finish_load("adapter_config.json is absent")
    assert driver.ends[stream].finish_reason is FinishReason.ERROR
    assert driver.ends[stream].error == "LoRA adapter 'a' was not loaded: adapter_config.json is absent"
    assert len(driver.tokens[stream]) == num_tokens > 0


def test_an_adapter_that_kills_workers_is_refused_after_two_groups_and_costs_no_other_request(drive):
    driver = drive(max_loras=2)
    driver.loads_at_once = False
    base = driver.add(5, max_tokens=30, seed=3)
    driver.step(2)
    deadly = driver.add(5, max_tokens=3, adapter=A)
    deaths = 0
    while not driver.rejections:
        driver.step()
        if driver.loads:
            deaths += 1
            if deaths == 2:
                assert not driver.scheduler.in_flight, "a candidate is loaded beside steps"
                assert driver.plan() is None, "a step is planned while a candidate is loaded"
            replace_workers(driver)
    assert deaths == 2
    assert driver.rejections[0].request_id == deadly
    assert DEADLY_ADAPTER in driver.rejections[0].message
    driver.run()
    assert driver.tokens[base] == tokens_of(drive, 5, None, max_tokens=30, seed=3)


def test_a_request_that_waits_for_its_adapter_expires_in_time(drive):
    driver = drive(max_loras=1)
    driver.loads_at_once = False
    stream = driver.add(5, adapter=A, ttl=1.0)
    driver.send_loads()
    driver.take(driver.engine.expire(2.0))
    assert driver.rejections[0].request_id == stream
    driver.finish_load()
    assert driver.engine.is_idle


def test_a_lost_client_leaves_nothing_behind_while_its_adapter_is_loaded(drive):
    driver = drive(max_loras=1)
    driver.loads_at_once = False
    driver.engine.add_client(b"lost", 0.0)
    driver.add(5, client=b"lost", adapter=A)
    driver.send_loads()
    driver.engine.remove_client(b"lost", 0.0)
    driver.finish_load()
    assert driver.engine.is_idle
    assert driver.engine.stats(1.0).adapters[0].num_waiting == 0


def test_outputs_of_a_lost_client_are_reused_only_with_the_same_adapter(drive):
    driver = drive(max_loras=2)
    driver.engine.add_client(b"lost", 0.0)
    driver.add(5, client=b"lost", adapter=A, max_tokens=20, seed=1)
    driver.step(5)
    driver.engine.remove_client(b"lost", 0.0)
    other, same = (driver.add(5, adapter=adapter, max_tokens=20, seed=1) for adapter in (B, A))
    assert not driver.tokens[other]
    assert driver.tokens[same]
    driver.run()
    assert driver.tokens[other] == tokens_of(drive, 5, B, max_tokens=20, seed=1)


def test_without_places_a_request_with_an_adapter_is_refused_with_the_remedy(drive):
    driver = drive()
    driver.add(5, adapter=A)
    [rejected] = driver.rejections
    assert rejected.param == "model"
    assert "adapter is a;" in rejected.message
    assert "--max-loras" in rejected.message


@pytest.mark.parametrize(("place", "digest"), [(2, A.digest), (1, B.digest)])
def test_an_answer_to_nothing_that_was_sent_is_an_error_of_the_protocol(drive, place, digest):
    driver = drive(max_loras=2)
    driver.loads_at_once = False
    driver.add(5, adapter=A)
    driver.send_loads()
    with pytest.raises(ProtocolError):
        driver.engine.adapter_loaded(AdapterLoaded(0, place, digest), 1, 0.0)
    driver.finish_load()
    with pytest.raises(ProtocolError):
        driver.engine.adapter_loaded(AdapterLoaded(0, 1, A.digest), 1, 0.0)


def test_events_of_the_prefix_cache_name_the_adapter(drive):
    driver = drive(max_loras=1, kv_events="ipc://unused")
    driver.add(9, max_tokens=1, adapter=A)
    driver.add(9, max_tokens=1)
    driver.run()
    stored = [event for event in driver.engine.kv_cache.events.take() if hasattr(event, "lora_name")]
    assert {(event.lora_name, event.lora_id) for event in stored} == {("a", int(A.digest[:8], 16) >> 1), (None, None)}


def test_statistics_count_the_sequences_of_each_adapter(drive):
    driver = drive(max_loras=1)
    driver.add(5, max_tokens=20, adapter=A, n=2)
    driver.step(3)
    driver.add(5, max_tokens=2, adapter=B)
    counts = {
        each.name: (each.is_loaded, each.num_running, each.num_waiting) for each in driver.engine.stats(9.0).adapters
    }
    assert counts == {"a": (True, 2, 0), "b": (False, 0, 1)}

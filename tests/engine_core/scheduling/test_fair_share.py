"""Tenants: equal shares by tokens or by weight; a single tenant is unaffected; a pause has no effect on a share."""

import pytest

from paged_serve.engine_core.engine.stats import STATS_INTERVAL_S
from paged_serve.engine_core.requests.tenant import RATE_OVER_S, Rate
from paged_serve.engine_core.scheduling.fair_share import MAX_IDLE_TENANTS, MAX_LEAD_BATCHES, FairShares
from paged_serve.engine_core.simulation.overload import Overload, Source, StepTime
from paged_serve.protocol.messages.engine_core import RejectReason

SHORT = {"prompt": (10, 60), "allowed": (10, 60)}


def order_of_service(driver, limit=10_000):
    """Stream ids in the order in which they were first scheduled."""
    seen = {}
    for _ in range(limit):
        alive = driver.step()
        for stream in sorted(driver.firsts, key=lambda stream: driver.firsts[stream].position):
            seen.setdefault(stream)
        if not alive:
            return list(seen)
    raise AssertionError("never ends")


def test_one_tenant_is_served_in_the_order_of_arrival(drive):
    driver = drive(max_num_seqs=1)
    streams = [driver.add(1 + index % 5, max_tokens=1 + index % 3, tenant="a") for index in range(12)]
    assert order_of_service(driver) == streams


def test_a_new_tenant_does_not_wait_for_the_whole_queue_of_another(drive):
    driver = drive(max_num_seqs=1)
    greedy = [driver.add(4, max_tokens=4, tenant="greedy") for _ in range(10)]
    driver.step()
    modest = [driver.add(4, max_tokens=4, tenant="modest") for _ in range(2)]
    order = order_of_service(driver)
    assert order[0] == greedy[0]
    assert max(order.index(stream) for stream in modest) <= 4
    assert [stream for stream in order if stream in greedy] == greedy  # FCFS within a tenant


def test_a_tenant_that_paused_starts_where_the_others_are(drive):
    """Otherwise a pause would give a tenant all service afterwards."""
    driver = drive(max_num_seqs=1)
    driver.add(4, max_tokens=1, tenant="pauses")
    for _ in range(10):
        driver.add(4, max_tokens=4, tenant="works")
    driver.step(30)
    late = [driver.add(4, max_tokens=4, tenant="pauses") for _ in range(4)]
    order = [stream for stream in order_of_service(driver) if stream in driver.ends]
    rest = order[order.index(late[0]) :]
    assert len(rest) > 4
    assert rest[:4] != late


def test_priority_comes_before_fairness(drive):
    driver = drive(max_num_seqs=1, policy="priority")
    driver.add(4, max_tokens=2)
    driver.step()
    low = [driver.add(4, max_tokens=2, tenant="a", priority=5) for _ in range(2)]
    high = [driver.add(4, max_tokens=2, tenant="b", priority=-1) for _ in range(3)]
    assert [stream for stream in order_of_service(driver) if stream in low + high] == [*high, *low]


def test_a_preempted_sequence_continues_before_new_sequences_of_other_tenants(drive):
    driver = drive(num_blocks=8, block_size=4, max_num_seqs=2)
    first, second = (driver.add([i + 1] * 8, max_tokens=20, tenant="a") for i in range(2))
    while not driver.scheduler.num_preemptions:
        driver.step()
    other = driver.add(16, max_tokens=4, tenant="b")  # does not fit either
    driver.step()  # charged to a
    waiting = driver.scheduler.waiting
    assert set(waiting) == {driver.sequence(second), driver.sequence(other)}
    assert waiting.first() is driver.sequence(second)
    assert driver.sequence(second).request.tenant.service > driver.sequence(other).request.tenant.service
    driver.run()
    assert set(driver.ends) == {first, second, other}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_tenants_that_always_wait_get_shares_by_weight(seed):
    sources = (
        Source("light", 60, **SHORT),
        Source("heavy", 60, weight=3.0, **SHORT),
        Source("greedy", 300, **SHORT),
    )
    world = Overload(seed, sources, max_num_seqs=8, max_model_len=128, checks=True).run(35)
    light, heavy, greedy = (world.tokens[source.tenant] for source in sources)
    assert light == pytest.approx(greedy, rel=0.1)
    assert heavy == pytest.approx(3 * light, rel=0.1)


def test_a_tenant_that_needs_less_than_its_share_gets_all_that_it_needs():
    sources = (Source("greedy", 300, **SHORT), Source("modest", 2, **SHORT))
    world = Overload(7, sources, max_num_seqs=8, max_model_len=128, checks=True).run(20)
    modest = [asked for asked in world.sent.values() if asked.source.tenant == "modest"]
    assert len(modest) > 30
    assert all(asked.rejected is None for asked in modest)
    waits = sorted(asked.first_token_s for asked in modest)
    others = sorted(a.first_token_s for a in world.sent.values() if a.source.tenant == "greedy" and a.first_token_s)
    assert waits[len(waits) // 2] * 5 < others[len(others) // 2]


def test_a_full_queue_refuses_only_the_tenants_that_fill_it(drive):
    driver = drive(max_num_seqs=1, max_num_queued_requests=10)
    for _ in range(12):
        driver.add(4, tenant="greedy")
    [refused] = driver.rejections  # one will run at once
    assert refused.reason is RejectReason.OVERLOADED
    for _ in range(7):
        driver.add(4, tenant="modest")
    assert [rejection.request_id // 1000 for rejection in driver.rejections] == [12, 19]
    assert "of this API key, its current share of 10" in driver.rejections[-1].message
    driver.add(4, tenant="greedy")
    assert len(driver.rejections) == 3


def test_stats_name_the_full_tenants_and_the_wait_of_each(drive):
    driver = drive(max_num_seqs=1, max_num_queued_requests=4, max_model_len=200, num_blocks=200)
    driver.add(4, tenant="greedy", max_tokens=150)
    driver.step(10)
    driver.engine.admission.forecast.step(0, 1, 1, 1.0, driver.now)  # a step of a second
    for tenant in ("greedy", "greedy", "greedy", "modest"):
        driver.add(4, tenant=tenant, max_tokens=150)
    stats = driver.engine.stats(driver.now + STATS_INTERVAL_S)
    greedy, modest = stats.tenants
    assert (greedy.tenant, greedy.num_queued, greedy.is_full) == ("greedy", 3, True)
    assert (modest.tenant, modest.num_queued, modest.is_full) == ("modest", 1, False)
    assert greedy.wait_s > modest.wait_s > stats.wait_s > 0


def test_idle_tenants_are_dropped_the_least_served_first():
    shares = FairShares(1)
    for index in range(MAX_IDLE_TENANTS + 1):
        shares.of(str(index), 1.0).service = index
    assert len(shares.tenants) < MAX_IDLE_TENANTS
    assert str(MAX_IDLE_TENANTS - 1) in shares.tenants
    assert "0" not in shares.tenants


def test_the_lead_of_a_tenant_with_only_prompts_is_bounded():
    shares = FairShares(4)
    reader, other = (shares.of(name, 1.0) for name in ("reader", "other"))
    for tenant in (reader, other):
        shares.sequence_arrived(tenant)
    for _ in range(1000):
        shares.sequence_arrived(reader)
        shares.charge_prompt(reader, 100)
        shares.sequence_ended(reader, 100, 0)
    assert 0 < reader.service - shares.virtual_time <= MAX_LEAD_BATCHES * 4 * 100
    assert shares.is_ahead(reader)
    assert not shares.is_ahead(other)


def test_old_arrivals_do_not_count_towards_the_rate():
    rate = Rate()
    rate.add(100.0, 5.0)
    assert rate.value(5.0) > 2 * rate.value(5.0 + RATE_OVER_S) > 0
    rate.add(1.0, 500.0)
    assert rate.value(500.0) == pytest.approx(1.0 / RATE_OVER_S)
    assert rate.value(400.0) == rate.value(500.0)  # a clock that goes backwards changes nothing


def p99_of_the_others(greedy_times, seed, seconds, each=8.0):
    """Seconds to the first token for nine keys, while a tenth key sends `greedy_times` as many requests."""
    keys = [Source(str(index), each * (greedy_times if index == 0 else 1), allowed=(64, 64)) for index in range(10)]
    step_time = StepTime(0.002, 0.00002, 0.0002)  # 95 requests a second with 32 rows
    world = Overload(seed, tuple(keys), step_time, max_num_seqs=32, max_num_queued_requests=64).run(seconds)
    waits = sorted(a.first_token_s for a in world.sent.values() if a.source.tenant != "0" and a.first_token_s)
    assert len(waits) > 66 * seconds
    return waits[int(0.99 * len(waits))]


@pytest.mark.parametrize(
    ("seeds", "seconds"), [(range(1, 5), 12), pytest.param(range(1, 9), 60, marks=pytest.mark.nightly)], ids=["4", "8"]
)
@pytest.mark.timeout(900)
def test_one_greedy_key_of_ten_delays_no_other_beyond_the_target(seeds, seconds):
    """At 84 % of the engine's capacity, within the target of 20 %; in virtual time, so equal on every machine."""
    fair = [p99_of_the_others(1, seed, seconds) for seed in seeds]
    greedy = [p99_of_the_others(10, seed, seconds) for seed in seeds]
    assert sum(greedy) <= 1.2 * sum(fair), (fair, greedy)

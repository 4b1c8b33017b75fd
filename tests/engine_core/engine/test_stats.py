"""The cost of statistics is bounded, regardless of the number of waiting keys and of clients."""

from paged_serve.engine_core.admission import forecast
from paged_serve.engine_core.engine.stats import STATS_INTERVAL_S
from paged_serve.protocol.messages.engine_core import EngineCoreOutputs
from paged_serve.protocol.messages.stats import MAX_TENANT_STATS, STEP_TOKENS

from ..conftest import CLIENT
from ..operations import count_lines


def flooded(drive, num_tenants):
    """Some steps with three requests of each tenant waiting."""
    driver = drive(max_num_seqs=4, num_blocks=256, max_num_queued_requests=100_000)
    for number in range(3 * num_tenants):
        driver.add(4, max_tokens=20, tenant=f"tenant {number % num_tenants}", request_id=1 + number)
    driver.step(3)
    return driver


def test_steps_are_counted_by_their_tokens(drive):
    driver = drive(max_num_batched_tokens=20)
    driver.add(30, max_tokens=6)
    driver.run()
    stats = driver.engine.stats(driver.now)
    assert stats.steps_by_tokens[:5] == (5, 0, 1, 1, 0), "five of 1 token, one of 10, one of 20"
    assert stats.step_tokens == 35
    assert len(stats.steps_by_tokens) == len(STEP_TOKENS) + 1


def test_the_cost_of_stats_is_linear_in_the_waiting_tenants(drive):
    def lines(num_tenants):
        driver = flooded(drive, num_tenants)
        return count_lines(lambda: driver.engine.stats(driver.now + STATS_INTERVAL_S))

    few, many = lines(32), lines(128)
    assert many < 5 * few
    assert many < 128 * 6 * MAX_TENANT_STATS


def test_waits_are_predicted_once_an_interval_for_all_clients(drive):
    driver = flooded(drive, 8)
    asked = []
    for number in range(5):
        driver.engine.add_client(b"client %d" % number, driver.now)
    predicted = driver.engine.admission.capacity.waits
    driver.engine.admission.capacity.waits = lambda: asked.append(None) or predicted()
    later = driver.now + STATS_INTERVAL_S
    for number in range(10):
        driver.engine.stats(later + number * STATS_INTERVAL_S / 20)
    assert len(asked) == 1
    driver.engine.stats(later + STATS_INTERVAL_S)
    assert len(asked) == 2


def test_waits_predicted_together_equal_waits_predicted_one_by_one(drive):
    driver = flooded(drive, 16)
    for number, tenant in enumerate(driver.scheduler.shares.tenants.values()):
        tenant.service += 30 * (number % 5)
    tenants = list(driver.scheduler.shares.tenants.values())
    alone = [driver.engine.admission.forecast.queue_s(tenant) for tenant in tenants]
    together = driver.engine.admission.forecast.queue_times(tenants)
    assert max(alone) > 0
    assert all(abs(a - b) <= 0.05 * max(a, b) for a, b in zip(alone, together, strict=True))
    assert forecast.ROUNDS > 1


def test_each_client_gets_stats_at_most_every_100_ms(drive):
    driver = drive()
    driver.add(4, max_tokens=40)
    driver.run()
    sent = [m for name, m in driver.messages if name == CLIENT and isinstance(m, EngineCoreOutputs) and m.stats]
    assert 3 <= len(sent) <= 5  # 40 steps of 10 ms

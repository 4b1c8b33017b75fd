"""A full engine makes room for a tenant that is not ahead, by stopping one that is; nothing is lost by it."""

from paged_serve.engine_core.giving_way import MAX_GIVEN_WAY


def occupy(driver, tenant, count, **options):
    """`count` running sequences of a tenant that is far ahead."""
    streams = [driver.add(8, tenant=tenant, **options) for _ in range(count)]
    while any(not driver.sequence(stream).joined_step for stream in streams):
        driver.step()
    shares = driver.scheduler.shares
    shares.tenants[tenant].service = shares.virtual_time + 1.5 * shares._batch_cost
    return streams


def test_a_full_engine_makes_room_for_who_is_not_ahead_and_nothing_else_is_lost(drive):
    driver = drive(max_num_seqs=3, pipeline_depth=2)
    greedy = occupy(driver, "greedy", 3, max_tokens=40)
    waiting = driver.add(8, max_tokens=4, tenant="greedy")
    modest = driver.add(8, max_tokens=4, tenant="modest")
    driver.step(3)
    assert driver.tokens[modest]
    assert [driver.sequence(stream).num_given_way for stream in greedy] == [0, 0, 1]
    driver.run()
    alone = drive(max_num_seqs=3)
    again = [alone.add(8, max_tokens=count) for count in (40, 40, 40, 4, 4)]
    alone.run()
    assert [driver.tokens[stream] for stream in (*greedy, waiting, modest)] == [alone.tokens[s] for s in again]


def test_blocks_too_are_given_back(drive):
    driver = drive(num_blocks=16, block_size=4, max_num_seqs=8, max_model_len=40)
    occupy(driver, "greedy", 4, max_tokens=8)
    modest = driver.add(20, max_tokens=4, tenant="modest")
    driver.step(2)
    assert driver.tokens[modest]
    assert driver.scheduler.num_preemptions > 0
    driver.run()


def test_who_is_ahead_itself_takes_nothing(drive):
    driver = drive(max_num_seqs=2)
    occupy(driver, "first", 2, max_tokens=40)
    shares = driver.scheduler.shares
    shares.of("second", 1.0).service = shares.virtual_time + 1.5 * shares._batch_cost
    driver.add(8, max_tokens=4, tenant="second")
    driver.step(2)
    assert driver.scheduler.num_preemptions == 0
    driver.run()


def test_a_better_priority_gives_way_to_nobody(drive):
    driver = drive(max_num_seqs=2, policy="priority")
    occupy(driver, "greedy", 2, max_tokens=40, priority=-1)
    driver.add(8, max_tokens=4, tenant="modest")
    driver.step(2)
    assert driver.scheduler.num_preemptions == 0
    driver.run()


def test_a_sequence_gives_way_a_few_times_and_then_ends(drive):
    driver = drive(max_num_seqs=1, max_model_len=64)
    [greedy] = occupy(driver, "greedy", 1, max_tokens=50)
    sequence = driver.sequence(greedy)
    for index in range(3 * MAX_GIVEN_WAY):
        shares = driver.scheduler.shares
        shares.tenants["greedy"].service = shares.virtual_time + 1.5 * shares._batch_cost
        driver.add(4, max_tokens=2, tenant=f"modest {index}")
        driver.step(6)
    assert sequence.num_given_way == MAX_GIVEN_WAY
    driver.run()
    assert greedy in driver.ends


def test_who_gave_way_waits_for_its_turn_and_is_not_stopped_at_once_again(drive):
    """It goes on before its own tenant's newer requests, but not before those of others."""
    driver = drive(max_num_seqs=1)
    [greedy] = occupy(driver, "greedy", 1, max_tokens=20)
    newer = driver.add(8, max_tokens=2, tenant="greedy")
    others = [driver.add(8, max_tokens=2, tenant=name) for name in ("b", "c")]
    order = []
    while driver.step():
        order += [stream for stream in driver.ends if stream not in order]
    assert order == [*others, greedy, newer]


def test_who_is_ahead_leaves_an_eighth_of_the_rows_free(drive):
    driver = drive(max_num_seqs=8)
    occupy(driver, "greedy", 6, max_tokens=40)
    greedy = [driver.add(8, max_tokens=40, tenant="greedy") for _ in range(3)]
    driver.step(2)
    assert [len(driver.tokens[stream]) > 0 for stream in greedy] == [True, False, False]
    modest = driver.add(8, max_tokens=4, tenant="modest")
    driver.step()
    assert driver.tokens[modest]
    assert driver.scheduler.num_preemptions == 0
    driver.run()


def test_what_somebody_reads_already_goes_on_in_every_row(drive):
    driver = drive(max_num_seqs=8)
    occupy(driver, "greedy", 8, max_tokens=40)
    driver.plans.clear()
    driver.answers.clear()
    driver.worker.epoch = 1
    driver.take(driver.engine.workers_replaced(1, driver.now, from_outside=True))
    driver.plan()
    assert len(driver.scheduler.running) == 8


def test_a_better_priority_takes_the_last_row_before_another_tenant_does(drive):
    driver = drive(max_num_seqs=8, policy="priority")
    occupy(driver, "greedy", 7, max_tokens=40)
    modest = driver.add(8, max_tokens=4, tenant="modest", priority=1)
    urgent = driver.add(8, max_tokens=4, tenant="greedy", priority=0)
    driver.step(2)
    assert driver.tokens[urgent]
    assert not driver.tokens[modest]
    driver.run()

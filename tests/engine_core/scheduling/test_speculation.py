"""Speculation: every output is that of plain decoding, and drafts take nothing from another sequence."""

import pytest

from paged_serve.engine_core.drafting.policies import FixedPolicy
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.samplers import RepetitionDetection
from paged_serve.protocol.messages.sampling_params import FinishReason


class Alternating(FixedPolicy):
    """Two steps with drafts, then a few in the decode set."""

    count = 0

    def wanted(self, histories, num_decoding):
        self.count += 1
        return [self.num_drafts if self.count % 4 < 2 else 0] * len(histories)

    def next_interval(self, history):
        history.interval = 3
        return 3


def load(driver):
    """Requests of every kind; returns the driver at their end."""
    driver.add(9, max_tokens=40)
    driver.add(5, max_tokens=33, n=3, seed=4)
    driver.add(12, max_tokens=60, ignore_eos=False, stop_token_ids=(3,), min_tokens=2)
    driver.add(30, max_tokens=20, logprobs=1, prompt_logprobs=0)
    driver.add(2, max_tokens=50, repetition_detection=RepetitionDetection(max_pattern_size=2, min_count=2))
    driver.add(7, max_tokens=1)
    driver.add(7, max_tokens=2)
    return driver.run()


@pytest.mark.parametrize("policy", [FixedPolicy, Alternating, None])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(
    ("accuracy", "windows"),
    [
        (0.0, (0,)),
        (0.8, (8, 0)),
        (1.0, (KVGroup(attention_chunk=16), 0)),
        (0.5, (KVGroup(is_state=True), 0)),
        (1.0, (KVGroup(is_state=True),)),
    ],
)
def test_outputs_are_those_of_plain_decoding(drive, policy, depth, accuracy, windows):
    shape = {"windows": windows, "vocab_size": 40, "pipeline_depth": depth, "num_blocks": 96, "max_model_len": 80}
    plain = load(drive(**shape))
    driver = load(drive(**shape, num_drafts=5, accuracy=accuracy, draft_policy=policy))
    assert driver.tokens == plain.tokens
    assert {stream: (end.finish_reason, end.stop_token_id) for stream, end in driver.ends.items()} == {
        stream: (end.finish_reason, end.stop_token_id) for stream, end in plain.ends.items()
    }
    assert driver.engine.counters.draft_tokens > 0
    num_tokens = sum(map(len, plain.tokens.values()))
    assert driver.engine.counters.generation_tokens == plain.engine.counters.generation_tokens == num_tokens
    assert driver.engine.counters.prompt_tokens >= plain.engine.counters.prompt_tokens


def test_right_drafts_save_steps_and_are_counted(drive):
    driver = drive(num_drafts=3, accuracy=1.0, draft_policy=FixedPolicy, max_model_len=200)
    stream = driver.add(4, max_tokens=80)
    driver.run()
    counters = driver.engine.counters
    assert len(driver.sent) < 60, "of 80 steps"
    assert counters.accepted_tokens == counters.draft_tokens >= 80 - len(driver.sent)
    stats = driver.engine.stats(1e9)
    assert stats.accepted_tokens == counters.accepted_tokens == sum(stats.accepted_per_position)
    assert stats.num_drafts == stats.accepted_per_position[0] >= stats.accepted_per_position[2] > 0
    assert len(driver.tokens[stream]) == 80


def test_verifications_follow_the_other_chunks_and_name_their_most_drafts(drive):
    driver = drive(num_drafts=3, draft_policy=FixedPolicy, max_num_batched_tokens=12, num_blocks=100)
    driver.add(4, max_tokens=30)
    driver.step()
    driver.add([50] * 25, max_tokens=30)
    plan = driver.plan()
    assert [(chunk.row, chunk.num_tokens, chunk.num_drafts) for chunk in plan.chunks] == [(1, 8, 0), (0, 1, 3)]
    assert plan.decode_joins == b""


def test_drafts_leave_half_of_a_step_to_prompts(drive):
    driver = drive(num_drafts=8, draft_policy=FixedPolicy, max_num_batched_tokens=9, num_blocks=100)
    driver.add(4, max_tokens=30)
    driver.step()
    driver.add([50] * 25, max_tokens=30)
    [prompt, verification] = driver.plan().chunks
    assert (prompt.num_tokens, verification.num_drafts) == (4, 4)


def test_no_sequence_is_preempted_for_a_draft(drive):
    shape = {"num_blocks": 14, "block_size": 2, "max_model_len": 28, "prefix_caching": False}
    plain, driver = drive(**shape), drive(**shape, num_drafts=8, draft_policy=FixedPolicy, accuracy=0.0)
    for each in (plain, driver):
        streams = [each.add([1 + index] * 6, max_tokens=7) for index in range(2)]
        each.run()
        assert each.scheduler.num_preemptions == 0
    assert [driver.tokens[stream] for stream in streams] == [plain.tokens[stream] for stream in streams]
    assert driver.engine.counters.draft_tokens > 0


def test_the_drafts_in_flight_fit_the_blocks_that_a_window_has_for_a_chunk(drive):
    shape = {"windows": (4,), "block_size": 1, "max_num_batched_tokens": 6, "pipeline_depth": 3}
    driver = drive(**shape, num_drafts=8, draft_policy=FixedPolicy, accuracy=0.0)
    driver.add(4, max_tokens=40)
    sequence, most = driver.sequence(1000), 0
    while not driver.engine.is_idle:
        while driver.plan() is not None:
            driver.execute()
        most = max(most, 0 if sequence.speculating is None else sequence.speculating.num_drafts)
        driver.apply()
    assert most == 5, "a chunk of six tokens is one token and five drafts"


def test_a_sequence_rests_while_the_results_in_flight_may_reach_its_limit(drive):
    driver = drive(num_drafts=8, draft_policy=FixedPolicy, pipeline_depth=3, accuracy=0.0, max_num_batched_tokens=64)
    stream = driver.add(4, max_tokens=9)
    plans = [driver.plan() for _ in range(3)]
    assert plans[1].chunks[0].num_drafts == 7, "eight tokens are left, one of them without a draft"
    assert plans[2] is None
    for _ in range(2):
        driver.execute()
        driver.apply()
    assert driver.plan() is not None
    driver.execute()
    driver.run()
    assert len(driver.tokens[stream]) == 9


def test_a_sequence_joins_the_decode_set_while_its_last_plain_results_are_in_flight(drive):
    driver = drive(num_drafts=4, draft_policy=FixedPolicy, pipeline_depth=2, accuracy=1.0)
    stream = driver.add(4, max_tokens=60)
    driver.step(3)
    driver.scheduler.speculation.policy.wanted = lambda histories, num_decoding: [0] * len(histories)
    for _ in range(6):
        driver.step()
        if driver.sequence(stream).joined_step:
            break
        assert driver.scheduler.in_flight, "the row takes part in every step"
    assert driver.sequence(stream).joined_step
    driver.run()
    plain = drive()
    plain.add(4, max_tokens=60)
    assert driver.tokens[stream] == plain.run().tokens[stream]


def test_what_follows_a_stop_token_is_dropped_with_its_logprobs(drive):
    plain = drive(vocab_size=500)
    stream = plain.add(4, max_tokens=30, seed=1)
    tokens = plain.run().tokens[stream]
    last = next(index for index in range(5, 30) if tokens[index] not in tokens[:index])
    driver = drive(vocab_size=500, num_drafts=12, draft_policy=FixedPolicy, accuracy=1.0, max_num_batched_tokens=64)
    ranks = []
    read = driver.read
    driver.read = lambda message: (
        ranks.extend(rank for output in message.outputs for rank in unpack_ids(output.logprobs.ranks)),
        read(message),
    )
    driver.add(4, max_tokens=30, stop_token_ids=(tokens[last],), logprobs=0, seed=1)
    driver.run()
    assert driver.tokens[stream] == tokens[: last + 1]
    assert driver.ends[stream].finish_reason is FinishReason.STOP
    assert ranks == list(range(last + 1)), "the fake worker's ranks are the positions"


def test_tokens_before_one_that_is_not_finite_are_delivered_and_the_rest_is_computed_again(drive):
    bad = iter([False] * 6 + [True] + [False] * 1000)
    driver = drive(
        num_drafts=12, draft_policy=FixedPolicy, accuracy=1.0, is_nan=lambda: next(bad), max_num_batched_tokens=64
    )
    stream = driver.add(9, max_tokens=40)
    while not driver.sequence(stream).num_nans:
        driver.step()
    assert len(driver.tokens[stream]) == 6
    driver.run()
    plain = drive()
    plain.add(9, max_tokens=40)
    assert driver.tokens[stream] == plain.run().tokens[stream]


def test_a_stop_before_one_that_is_not_finite_ends_the_sequence_and_publishes_no_block(drive):
    plain = drive()
    stream = plain.add(9, max_tokens=40, seed=1)
    tokens = plain.run().tokens[stream]
    bad = iter([False] * 8 + [True] + [False] * 1000)
    driver = drive(
        num_drafts=12, draft_policy=FixedPolicy, accuracy=1.0, is_nan=lambda: next(bad), max_num_batched_tokens=64
    )
    driver.add(9, max_tokens=40, stop_token_ids=(tokens[6],), seed=1)
    driver.worker._drafter.draft = draft_all(driver.worker._drafter.draft)
    sequence = driver.sequence(stream)
    driver.run()
    assert driver.tokens[stream] == tokens[:7]
    assert driver.ends[stream].finish_reason is FinishReason.STOP
    pool = driver.engine.kv_cache.pool
    assert all(pool.block_of(name) == -1 for name in sequence.block_hashes)


def draft_all(draft):
    """Drafts until all that are allowed are made."""

    def repeat(row, most):
        count = 0
        while count < most:
            row.num_computed += count
            count += draft(row, most - count)
            row.num_computed = len(row.tokens) - 1 - count
        return count

    return repeat


def test_a_candidate_gets_drafts_again_once_it_has_run_alone(drive):
    driver = drive(num_drafts=4, draft_policy=FixedPolicy, pipeline_depth=2, accuracy=1.0)
    driver.add(4, max_tokens=60)
    driver.step(4)
    length = len(driver.sequence(1000).output)
    most = length + sum(plan.num_tokens for plan in driver.scheduler.in_flight)
    driver.engine.workers_replaced(1, driver.now, from_outside=False)
    driver.worker.epoch = 1
    driver.worker._rows.clear()
    driver.worker._decode_set.clear()
    driver.plans.clear()
    driver.answers.clear()
    goal = driver.scheduler.worker_poison._candidates[driver.sequence(1000)]
    assert goal == most, "every draft in flight may have caused the death"
    while len(driver.sequence(1000).output) < goal:
        plan = driver.plan()
        assert all(chunk.num_drafts == 0 for chunk in plan.chunks)
        driver.execute()
        driver.apply()
    num_sent = len(driver.sent)
    driver.run()
    assert sum(bool(chunk.num_drafts) for plan in driver.sent[num_sent:] for chunk in plan.chunks) > 3
    plain = drive()
    plain.add(4, max_tokens=60)
    assert driver.tokens == plain.run().tokens


def test_the_tokens_of_a_verification_are_charged_to_its_tenant(drive):
    plain, driver = drive(), drive(num_drafts=4, draft_policy=FixedPolicy, accuracy=1.0)
    for each in (plain, driver):
        each.add(4, max_tokens=41, tenant="a")
        each.run()
    assert driver.scheduler.shares.virtual_time == plain.scheduler.shares.virtual_time == 4 + 2 * 40


def test_the_forecast_counts_the_tokens_of_a_step_not_its_rows(drive):
    driver = drive(num_drafts=4, draft_policy=FixedPolicy, accuracy=1.0, max_model_len=200)
    driver.add(4, max_tokens=100)
    driver.run()
    pace = driver.engine.admission.forecast._pace
    pace.prices(1)
    assert pace.tokens_per_row > 1.5


def test_rows_may_learn_from_those_that_may_share_their_prefixes(drive):
    driver = drive()
    for salt in ("", "mine", "mine", "yours"):
        driver.add(4, max_tokens=8, salt=salt)
    driver.run()
    histories = [new.history for plan in driver.sent for new in plan.new_rows]
    assert histories[1] == histories[2]
    assert len({*histories}) == 3
    assert {len(history) for history in histories} == {32}

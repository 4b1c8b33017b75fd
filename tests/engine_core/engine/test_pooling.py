"""Pooling requests through the whole engine: refusals, the prefix cache, and recovery."""

import msgspec
import pytest

from paged_serve.engine_core.admission.pooling import MAX_VECTORS_BYTES, PoolingFacts
from paged_serve.engine_core.engine.endings import DEADLY
from paged_serve.engine_core.simulation.correct_results import VECTOR_SIZE, extend_hash, vector
from paged_serve.engine_core.simulation.fake_workers.fake_worker import FakeWorker
from paged_serve.protocol.errors import NO_VECTOR, ProtocolError
from paged_serve.protocol.messages.engine_core import RejectReason
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

CLIENT = b"client:0"
BOTH = PoolingFacts(("generate", "embed", "token_embed"), embedding_size=VECTOR_SIZE)
ENCODER = PoolingFacts(
    ("embed", "token_embed"), embedding_size=VECTOR_SIZE, needs_whole_prompt=True, is_bidirectional=True
)
EMBED = PoolingParams()
DEFAULTS = msgspec.structs.asdict(SamplingParams())


def expected(prompt, pooling=EMBED):
    prefix, prefixes = 0, []
    for token in prompt:
        prefix = extend_hash(prefix, token)
        prefixes.append(prefix)
    return vector(prefixes, pooling)


def new_prompt(length, start=1):
    return [start + i % 97 for i in range(length)]


def chunks(driver):
    return [chunk.num_tokens for plan in driver.sent for chunk in plan.chunks]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("task", ["embed", "token_embed"])
def test_a_vector_ends_its_stream_without_a_token(drive, depth, task):
    driver, pooling = drive(pooling=BOTH, pipeline_depth=depth, max_num_batched_tokens=8), PoolingParams(task)
    prompts = [new_prompt(length, length) for length in (1, 7, 8, 9, 30, 64)]
    streams = [driver.add(prompt, pooling=pooling) for prompt in prompts]
    driver.run()
    for stream, prompt in zip(streams, prompts, strict=True):
        end = driver.ends[stream]
        assert (end.finish_reason, end.token_ids, end.position) == (FinishReason.STOP, b"", 0)
        assert end.pooled == expected(prompt, pooling)
    assert not any(plan.decode_joins for plan in driver.sent)
    assert driver.engine.counters.generation_tokens == 0


def test_rows_that_generate_and_rows_that_pool_share_steps(drive):
    alone = drive()
    alone.add(20, max_tokens=9, seed=1)
    driver = drive(pooling=BOTH, max_num_batched_tokens=8, pipeline_depth=2)
    text = driver.add(20, max_tokens=9, seed=1)
    streams = [driver.add(new_prompt(30, start), pooling=EMBED) for start in (5, 6, 7)]
    driver.run()
    alone.run()
    assert driver.tokens[text] == alone.tokens[1000]
    assert [driver.ends[stream].pooled for stream in streams] == [expected(new_prompt(30, s)) for s in (5, 6, 7)]


@pytest.mark.parametrize(
    ("facts", "request_options", "words", "param"),
    [
        (PoolingFacts(), {"pooling": EMBED}, ["does not serve embed", "it serves generate"], "task"),
        (ENCODER, {}, ["does not serve generate", "it serves embed, token_embed"], "task"),
        (BOTH, {"pooling": PoolingParams("classify")}, ["does not serve classify"], "task"),
        (BOTH, {"pooling": EMBED, "n": 2}, ["n is 2"], "n"),
        (BOTH, {"pooling": EMBED, "temperature": 0.5}, ["sampling parameters"], "sampling_params"),
        (BOTH, {"pooling": PoolingParams(dimensions=4)}, ["dimensions is 4", "have 3"], "dimensions"),
        (
            PoolingFacts(("embed",), 3, matryoshka_dimensions=(1, 3)),
            {"pooling": PoolingParams(dimensions=2)},
            ["dimensions is 2", "1, 3"],
            "dimensions",
        ),
        (
            PoolingFacts(("classify",), num_labels=2),
            {"pooling": PoolingParams("classify", dimensions=1)},
            ["dimensions is 1", "no embedding"],
            "dimensions",
        ),
        (BOTH, {"pooling": PoolingParams(second_text=10)}, ["second_text is 10", "is 9"], "second_text"),
        (BOTH, {"pooling": EMBED, "prompt": 65}, ["65 tokens", "Shorten it to 64"], "prompt"),
        (ENCODER, {"pooling": EMBED, "prompt": 17}, ["17 tokens", "16", "--max-num-batched-tokens"], "prompt"),
        (
            PoolingFacts(("token_embed",), 1 << 17),
            {"pooling": PoolingParams("token_embed"), "prompt": 10},
            ["10 vectors of 131072 numbers", str(MAX_VECTORS_BYTES), "to 6 tokens"],
            "prompt",
        ),
        (
            PoolingFacts(("token_embed",), 1 << 20),
            {"pooling": PoolingParams("token_embed", dimensions=1 << 16), "prompt": 10, "batched": 1000},
            ["a step of 1000 tokens", "--max-num-batched-tokens to 240"],
            "task",
        ),
    ],
)
def test_an_unsupported_pooling_request_is_refused_with_the_numbers(drive, facts, request_options, words, param):
    driver = drive(pooling=facts, max_num_batched_tokens=request_options.pop("batched", 16))
    driver.add(request_options.pop("prompt", 10), **request_options)
    (rejection,) = driver.rejections
    assert (rejection.reason, rejection.param) == (RejectReason.INVALID, param)
    assert all(word in rejection.message for word in words), rejection.message


def test_a_vector_of_the_last_token_may_use_the_prefix_cache_and_one_of_all_tokens_may_not(drive):
    prompt = new_prompt(30)
    for facts, task, cached in ((BOTH, "embed", 28), (BOTH, "token_embed", 0), (None, "embed", 0)):
        facts = facts or PoolingFacts(("embed",), VECTOR_SIZE, needs_whole_prompt=True)
        driver, pooling = drive(pooling=facts), PoolingParams(task)
        for _ in range(2):
            stream = driver.add(prompt, pooling=pooling)
            driver.run()
        assert driver.ends[stream].num_cached_tokens == cached
        assert driver.ends[stream].pooled == expected(prompt, pooling)
    driver = drive(pooling=BOTH)
    driver.add(prompt, pooling=EMBED)
    driver.run()
    text = driver.add(prompt, max_tokens=2)
    skipping = driver.add(prompt, pooling=PoolingParams(skip_reading_prefix_cache=True))
    driver.run()
    assert driver.firsts[text].num_cached_tokens == 28, "a generating request finds the blocks of a pooling request"
    assert driver.ends[skipping].num_cached_tokens == 0


def test_an_encoder_gets_each_prompt_in_one_chunk_and_shares_nothing(drive):
    driver = drive(pooling=ENCODER, max_num_batched_tokens=16, pipeline_depth=2)
    lengths = [10, 10, 16, 3, 3, 3, 7, 9, 16]
    streams = [driver.add(new_prompt(length), pooling=EMBED) for length in lengths]
    driver.run()
    assert chunks(driver) == lengths
    assert all(sum(chunk.num_tokens for chunk in plan.chunks) <= 16 for plan in driver.sent)
    assert all(driver.ends[s].pooled == expected(new_prompt(n)) for s, n in zip(streams, lengths, strict=True))
    assert driver.engine.counters.prefix_cache_hits == 0
    assert driver.engine.kv_cache.pool.num_cached == 0


def test_a_preempted_row_computes_its_vector_again(drive):
    driver = drive(pooling=BOTH, max_num_batched_tokens=4, num_blocks=20, pipeline_depth=2)
    stream = driver.add(30, pooling=EMBED)
    driver.step(2)
    driver.scheduler.preempt(driver.sequence(stream))
    driver.run()
    assert driver.ends[stream].pooled == expected(new_prompt(30))
    assert driver.ends[stream].times.num_preemptions == 1


def test_a_result_that_is_not_finite_is_computed_again_once(drive):
    for count, ends in ((1, FinishReason.STOP), (2, FinishReason.ERROR)):
        bad = iter([True] * count)
        driver = drive(pooling=BOTH, is_nan=lambda bad=bad: next(bad, False))
        stream = driver.add(30, pooling=EMBED)
        driver.run()
        assert driver.ends[stream].finish_reason is ends
        assert driver.ends[stream].error == ("" if count == 1 else NO_VECTOR)


def test_vectors_survive_worker_deaths_and_only_the_poison_request_ends(drive):
    driver = drive(pooling=BOTH, max_num_batched_tokens=16)
    streams = [driver.add(new_prompt(30, start), pooling=EMBED) for start in (1, 2, 3)]
    deadly = driver.sequence(streams[1])
    for epoch in (1, 2, 3, 4):
        while driver.plan() is not None:
            if any(chunk.sequence is deadly and chunk.pools for chunk in driver.scheduler.in_flight[-1].chunks):
                break
            driver.execute()
            driver.apply()
        else:
            break
        driver.plans.clear()
        driver.take(driver.engine.workers_replaced(epoch, driver.now, from_outside=False))
        driver.worker = FakeWorker(64, 4, 100_000, epoch)
    assert driver.ends[streams[1]].error == DEADLY
    assert [driver.ends[s].pooled for s in (streams[0], streams[2])] == [expected(new_prompt(30, s)) for s in (1, 3)]


def test_an_answer_that_lacks_a_vector_violates_the_protocol(drive):
    driver = drive(pooling=BOTH)
    driver.add(10, pooling=EMBED)
    driver.plan()
    driver.execute()
    with pytest.raises(ProtocolError, match=r"pooled rows \[\] instead of \[0\]"):
        driver.apply(lambda answer: msgspec.structs.replace(answer, pooled=()))


def test_a_client_that_fell_behind_gets_its_vectors_later(drive):
    driver = drive(pooling=BOTH)
    driver.engine.clients[CLIENT].credit = 0
    driver.add(10, pooling=PoolingParams("token_embed"))
    driver.run()
    outbox = driver.engine.clients[CLIENT]
    assert outbox.is_behind
    assert outbox.unacknowledged_bytes > 10 * VECTOR_SIZE * 4
    driver.take(driver.engine.outputs_received(CLIENT, 1))
    assert driver.ends[1000].pooled == expected(new_prompt(10), PoolingParams("token_embed"))
    assert outbox.unacknowledged_bytes == 0


def test_a_repeated_request_counts_once_and_another_task_is_another_request(drive):
    driver = drive(pooling=BOTH)
    for _ in range(2):
        driver.add(10, request_id=1, pooling=EMBED)
    assert not driver.rejections
    driver.add(10, request_id=1, pooling=PoolingParams("token_embed"))
    assert "already in use" in driver.rejections[0].message
    driver.run()
    assert driver.ends[1].pooled == expected(new_prompt(10))


def test_a_candidate_of_a_cores_death_is_cleared_by_its_vector(drive):
    driver = drive(pooling=BOTH, epoch=1)
    poison = driver.engine.admission.core_poison
    poison.candidates_withheld(CLIENT, 1)
    poison.record(poison.turn_number)
    assert poison.next_turn(driver.now) == CLIENT
    other = driver.add(12, request_id=50, pooling=EMBED)
    stream = driver.add(10, pooling=EMBED, isolation_tokens=4)
    driver.step(3)
    assert driver.ends[stream].pooled == expected(new_prompt(10))
    assert other not in driver.ends
    assert not driver.scheduler.worker_poison.sequences()


def test_the_output_of_an_abandoned_request_is_not_reused_for_a_vector(drive):
    driver = drive(pooling=BOTH)
    prompt = new_prompt(10)
    driver.engine.add_client(b"lost", driver.now)
    driver.add(prompt, client=b"lost", request_id=1, **DEFAULTS)
    driver.step(3)
    driver.engine.remove_client(b"lost", driver.now)
    stream = driver.add(prompt, pooling=EMBED)
    driver.run()
    assert driver.ends[stream].pooled == expected(prompt)


def test_a_prompt_that_the_cache_cannot_hold_is_refused(drive):
    driver = drive(num_blocks=6, max_model_len=100, windows=(0, 8), pooling=BOTH, max_num_batched_tokens=16)
    longest = driver.engine.kv_cache.capacity_tokens
    stream = driver.add(new_prompt(longest), pooling=EMBED)
    driver.run()
    assert driver.ends[stream].pooled == expected(new_prompt(longest))
    driver.add(new_prompt(longest + 1), pooling=EMBED)
    (refusal,) = driver.rejections
    assert (refusal.reason, refusal.param) == (RejectReason.INVALID, "prompt")
    assert "; there are 6. Shorten the prompt, or enlarge the cache" in refusal.message

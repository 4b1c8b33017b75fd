"""Which requests admission refuses, and with which message."""

import pytest

from paged_serve.engine_core.admission import validation
from paged_serve.protocol.messages.engine_core import RejectReason
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.samplers import Dry
from paged_serve.protocol.messages.sampling_params import FinishReason, RequestOutputKind

from ..conftest import CLIENT


def refusal(driver):
    [rejected] = driver.rejections
    assert driver.engine.is_idle
    assert driver.engine.kv_cache.pool.num_free == driver.facts.num_blocks
    return rejected


@pytest.mark.parametrize(
    ("options", "request_options", "words", "param"),
    [
        ({}, {"prompt": []}, ["empty"], "prompt"),
        ({"max_model_len": 32}, {"prompt": 32}, ["32 tokens", "(max_model_len)", "31"], "prompt"),
        ({"vocab_size": 50}, {"prompt": [1, 50]}, ["token 50", "0..49"], "prompt"),
        ({"vocab_size": 50}, {"prompt": [1, -3]}, ["token -3", "0..49"], "prompt"),
        ({"vocab_size": 50}, {"prompt": [1], "stop_token_ids": (50,)}, ["token 50", "0..49"], "stop_token_ids"),
        (
            {"num_blocks": 5},
            {"prompt": 10, "max_tokens": 30},
            ["10 prompt", "30 output", "10 KV", "are 5"],
            "max_tokens",
        ),
        ({"num_blocks": 2}, {"prompt": 10}, ["3 KV blocks", "there are 2"], "max_tokens"),
        (
            {},
            {"prompt": [1], "allowed_token_ids": (7, 8), "stop_token_ids": (7, 8), "min_tokens": 3, "max_tokens": 5},
            ["no token is left", "min_tokens=3"],
            "allowed_token_ids",
        ),
        (
            {},
            {"prompt": [1], "allowed_token_ids": (7,), "bad_words_token_ids": ((7,), (8, 9))},
            ["no token is left", "bad_words"],
            "allowed_token_ids",
        ),
        ({}, {"prompt": [1], "logprobs": 21}, ["logprobs is 21", "at most 20"], "logprobs"),
        ({}, {"prompt": [1], "logprobs": -1}, ["logprobs is -1"], "logprobs"),
        (
            {"max_model_len": 2048, "num_blocks": 1024},
            {"prompt": 1000, "prompt_logprobs": 20, "n": 18, "seed": 1, "max_tokens": 1},
            ["n=18", "1000 prompt", "3168000 bytes"],
            "prompt_logprobs",
        ),
        ({}, {"prompt": [1], "priority": 1}, ["priority is 1", "fcfs", "--scheduling-policy priority"], "priority"),
        ({}, {"prompt": [1], "resume": ([1], [2])}, ["2 entries", "n=1"], "resume_token_ids"),
        ({}, {"prompt": [1], "max_tokens": 1, "resume": ([1, 2],)}, ["2 tokens", "may have 1"], "resume_token_ids"),
        ({"vocab_size": 50}, {"prompt": [1], "resume": ([50],)}, ["token 50"], "resume_token_ids"),
    ],
)
def test_a_bad_request_is_refused_with_the_numbers(drive, options, request_options, words, param):
    driver = drive(**options)
    driver.add(request_options.pop("prompt"), **request_options)
    rejected = refusal(driver)
    assert rejected.reason is RejectReason.INVALID
    assert rejected.param == param
    for word in words:
        assert word in rejected.message


def test_a_request_that_just_fits_is_accepted_and_finishes(drive):
    driver = drive(num_blocks=10, block_size=4, max_model_len=41)
    stream = driver.add(10, max_tokens=31)
    driver.run()
    assert len(driver.tokens[stream]) == 31


def test_without_max_tokens_the_output_is_bounded_by_context_and_cache(drive):
    roomy = drive(num_blocks=64, block_size=4, max_model_len=41)
    stream = roomy.add(10)
    roomy.run()
    assert len(roomy.tokens[stream]) == 31
    tight = drive(num_blocks=5, block_size=4, max_model_len=41)
    stream = tight.add(10)
    tight.run()
    assert len(tight.tokens[stream]) == 11
    assert tight.ends[stream].finish_reason is FinishReason.LENGTH


def test_a_stream_id_in_use_is_refused_and_its_stream_continues(drive):
    driver = drive()
    stream = driver.add(4, max_tokens=5, n=3, request_id=100, seed=1)
    driver.add(4, max_tokens=5, request_id=102)
    assert "already in use" in driver.rejections[0].message
    driver.run()
    assert all(len(driver.tokens[stream + index]) == 5 for index in range(3))


def test_a_repeated_request_runs_once(drive):
    driver = drive()
    stream = driver.add(4, max_tokens=5, request_id=100, seed=1)
    driver.add(4, max_tokens=5, request_id=100, seed=1)
    driver.run()
    assert not driver.rejections
    assert len(driver.tokens[stream]) == 5


def test_a_full_queue_refuses_requests_until_it_drains(drive):
    driver = drive(max_num_seqs=1, max_num_queued_requests=2)
    streams = [driver.add(4, max_tokens=2) for _ in range(3)]  # one will run at once
    driver.add(4)
    [rejected] = driver.rejections
    assert rejected.reason is RejectReason.OVERLOADED
    assert rejected.retry_after_s == 1.0  # nothing was measured yet
    assert "3 sequences" in rejected.message
    driver.run()
    streams.append(driver.add(4, max_tokens=2))
    driver.run()
    assert all(len(driver.tokens[stream]) == 2 for stream in streams)


def test_the_queue_is_bounded_in_tokens_too(drive):
    driver = drive(max_num_queued_tokens=20)
    driver.add(15, max_tokens=1)
    driver.add(6, max_tokens=1)
    [rejected] = driver.rejections
    assert rejected.reason is RejectReason.OVERLOADED
    assert "with this request 21 tokens would wait; at most 20 may" in rejected.message


def test_a_request_larger_than_the_queue_is_accepted_when_the_queue_is_empty(drive):
    driver = drive(max_num_queued_requests=2, max_num_queued_tokens=10, max_num_seqs=2)
    stream = driver.add(20, n=6, max_tokens=2, seed=3)
    driver.run()
    assert all(len(driver.tokens[stream + index]) == 2 for index in range(6))


@pytest.mark.parametrize("output", [[9], []])
def test_a_request_accepted_before_a_restart_is_never_refused_as_overload(drive, output):
    driver = drive(max_num_seqs=1, max_num_queued_requests=1, epoch=1)
    driver.engine.admission.draining = True
    begun = [driver.add([index], max_tokens=3, resume=(output,), resumed=True) for index in range(4)]
    assert not driver.rejections
    driver.tokens.update({stream: list(output) for stream in begun})
    driver.run()
    assert all(driver.ends[stream].finish_reason is FinishReason.LENGTH for stream in begun)


@pytest.mark.parametrize("claim", [{"resumed": True}, {"resume": ([9],)}, {"isolation_tokens": 8}])
@pytest.mark.parametrize("limit", ["draining", "full"])
def test_in_a_first_core_a_claim_of_acceptance_does_not_bypass_drain_or_limits(drive, claim, limit):
    driver = drive(max_num_seqs=1, max_num_queued_requests=2)
    driver.engine.admission.draining = limit == "draining"
    for _ in range(100):
        driver.add(4, max_tokens=3, **claim)
    assert driver.scheduler.num_live == (0 if limit == "draining" else 3)
    assert len(driver.rejections) == 100 - driver.scheduler.num_live


def test_after_a_restart_claims_of_acceptance_are_bounded_by_the_capacity_of_a_core(drive):
    driver = drive(max_num_seqs=1, max_num_queued_requests=1, epoch=1)
    driver.engine.admission.draining = True
    for index in range(100):
        driver.add([index], max_tokens=3, resume=([9],))
    assert driver.scheduler.num_live == 2 * (1 + 1)


def test_a_client_that_was_dropped_may_return_with_its_requests(drive):
    driver = drive(max_num_seqs=1, max_num_queued_requests=3)
    for index in range(3):
        driver.add([index], max_tokens=30)
    driver.step(2)
    driver.engine.remove_client(CLIENT, driver.now)
    driver.engine.add_client(CLIENT, driver.now)
    driver.engine.admission.draining = True
    for index in range(5):
        driver.add([index], max_tokens=30, resume=([9],), request_id=5000 + index)
    assert driver.scheduler.num_live == 3


def test_draining_refuses_with_its_own_reason(drive):
    driver = drive()
    driver.engine.admission.draining = True
    driver.add(4)
    assert refusal(driver).reason is RejectReason.DRAINING


def test_a_request_without_a_seed_gives_the_same_output_when_repeated(drive):
    outputs = []
    questions = [([5, 6], {}), ([5, 6], {}), ([5, 7], {}), ([5, 6], {"top_k": 3})]
    for prompt, params in questions:
        driver = drive()
        stream = driver.add(prompt, max_tokens=10, **params)
        driver.run()
        outputs.append(driver.tokens[stream])
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]
    assert outputs[0] != outputs[3]


def test_a_negative_seed_is_a_seed_of_its_own_except_minus_one(drive):
    outputs = []
    for prompt, seed in (([5, 6], -2), ([5, 6], -2), ([5, 6], 2), ([5, 6], -(2**63)), ([5, 6], -1), ([5, 6], None)):
        driver = drive()
        stream = driver.add(prompt, max_tokens=10, seed=seed)
        driver.run()
        outputs.append(tuple(driver.tokens[stream]))
    assert outputs[0] == outputs[1]
    assert outputs[4] == outputs[5]
    assert len(set(outputs)) == 4


def test_the_order_of_biases_does_not_change_the_output(drive):
    outputs = []
    for biases in ({5: 1.0, 6: 2.0}, {6: 2.0, 5: 1.0}, {5: 2.0, 6: 1.0}):
        driver = drive()
        stream = driver.add([5, 6], max_tokens=10, logit_bias=biases)
        driver.run()
        outputs.append(driver.tokens[stream])
    assert outputs[0] == outputs[1]
    assert outputs[0] != outputs[2]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}, {}),
        ({"seed": -1, "top_k": -1, "thinking_token_budget": -1, "logit_bias": {}}, {}),
        ({"logprobs": -1}, {"logprobs": 20}),
        ({"prompt_logprobs": -1, "skip_reading_prefix_cache": True}, {"prompt_logprobs": 20}),
        ({"stop_token_ids": [7, 5, 7]}, {"stop_token_ids": [5, 7]}),
        ({"allowed_token_ids": [*range(19, 0, -1), 3]}, {"allowed_token_ids": [*range(1, 20)]}),
        ({"logprob_token_ids": [7, 5]}, {"logprob_token_ids": [5, 7]}),
        ({"bad_words_token_ids": [[7, 5], [6], [6]]}, {"bad_words_token_ids": [[6], [7, 5]]}),
        ({"stop": ["b", "a", "b"]}, {"stop": ["a", "b"]}),
        ({"output_kind": RequestOutputKind.DELTA, "flat_logprobs": True, "logprobs": 1}, {"logprobs": 1}),
        ({"dry": Dry(multiplier=1, breaker_token_ids=(7, 5))}, {"dry": Dry(multiplier=1, breaker_token_ids=(5, 7))}),
    ],
    ids=str,
)
def test_a_request_without_a_seed_gives_the_same_output_however_it_is_written(drive, written, meant):
    """Frontends resolve -1 before they send a request, and the client library does not."""
    outputs = []
    for params in (written, meant):
        driver = drive(vocab_size=20)
        stream = driver.add([5, 6], max_tokens=10, **params)
        driver.run()
        outputs.append(driver.tokens[stream])
    assert outputs[0] == outputs[1]


def test_the_first_of_n_sequences_is_the_one_of_n_1_and_the_others_differ(drive):
    driver = drive()
    one = driver.add(6, max_tokens=10, seed=7)
    many = driver.add(6, max_tokens=10, seed=7, n=3)
    driver.run()
    assert driver.tokens[one] == driver.tokens[many]
    assert len({tuple(driver.tokens[many + index]) for index in range(3)}) == 3


@pytest.mark.parametrize("field", ["prompt", "resume"])
def test_a_prompt_that_is_too_long_is_refused_before_its_ids_are_read(drive, monkeypatch, field):
    read = []
    monkeypatch.setattr(validation, "unpack_ids", lambda ids: read.append(ids) or unpack_ids(ids))
    driver = drive(max_model_len=32)
    long = [1] * 1000
    driver.add(**({"prompt": long} if field == "prompt" else {"prompt": [1], "resume": (long,)}))
    assert "tokens" in refusal(driver).message
    assert [len(ids) for ids in read] == ([] if field == "prompt" else [4])

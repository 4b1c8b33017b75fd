"""LLM over a fake engine: prompts, outputs, and errors."""

import json
import threading
from array import array
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from paged_serve.frontend.client.streams.deltas import SequenceDelta, TokenLogprobs
from paged_serve.frontend.offline.outputs import OutputBuilder
from paged_serve.frontend.offline.prompts import Prompt
from paged_serve.protocol.errors import EngineDead, InvalidRequest
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreRequest,
    Logprobs,
    RejectReason,
    RequestRejected,
    RequestTimes,
    Utility,
    UtilityCall,
    UtilityResult,
)
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..fake_core import expected, generate, output
from ..http_server import Server
from .running_llm import core_of, llms, models, params, text_of

model = pytest.fixture(scope="module")(models)
start = pytest.fixture(llms)


@pytest.mark.parametrize(
    "prompt",
    [
        "5 6 7",
        [5, 6, 7],
        list(np.array([5, 6, 7])),
        {"prompt": "5 6 7"},
        {"prompt_token_ids": [5, 6, 7]},
        {"prompt": "x", "prompt_token_ids": [5, 6, 7]},
        {"prompt": "5 6 7", "multi_modal_data": None, "mm_processor_kwargs": {}, "prompt_embeds": None},
        {"type": "token", "prompt_token_ids": [5, 6, 7]},
    ],
)
def test_every_form_of_a_prompt_is_accepted(start, prompt):
    (one,) = start().generate(prompt, params())
    (same,) = start().generate([prompt], params())
    for result in (one, same):
        assert result.prompt_token_ids == [5, 6, 7]
        assert result.outputs[0].token_ids == expected([5, 6, 7], 0, 4)
        assert result.outputs[0].text == text_of(expected([5, 6, 7], 0, 4))
        assert (result.outputs[0].finish_reason, result.finished) == ("length", True)


def test_results_are_in_the_order_of_the_prompts(start):
    llm = start()
    lengths = [9, 1, 5, 3] * 5
    outputs = llm.generate([[i] for i in range(20)], [params(length) for length in lengths])
    assert [result.outputs[0].token_ids for result in outputs] == [
        expected([i], 0, length) for i, length in enumerate(lengths)
    ]
    assert [result.request_id for result in outputs] == [str(i) for i in range(20)]


def test_n_sequences_are_in_order(start):
    (result,) = start().generate([[5]], params(n=3))
    assert [sequence.index for sequence in result.outputs] == [0, 1, 2]
    assert [sequence.token_ids for sequence in result.outputs] == [expected([5], i, 4) for i in range(3)]


def test_no_prompts_give_no_outputs(start):
    assert start().generate([]) == []


def test_the_models_own_parameters_are_the_default(start):
    llm = start()
    llm.generate([[5]])
    (request,) = core_of(llm).all(EngineCoreRequest)
    assert request.sampling_params == SamplingParams(temperature=0.25, top_k=7, max_tokens=5)
    assert llm.get_default_sampling_params() == request.sampling_params


def test_requests_in_flight_never_exceed_the_bound(start):
    llm = start(max_num_seqs=2)
    held = Counter()

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            held["now"] += 1
            held["most"] = max(held["most"], held["now"])
            generate()(core, peer, message)
            held["now"] -= 1

    core_of(llm).script = script
    sizes = []
    submit = llm._client.submit

    def counted(*args, **fields):
        sizes.append(len(llm._client._session.table.requests))
        return submit(*args, **fields)

    llm._client.submit = counted
    outputs = llm.generate([[i] for i in range(100)], params())
    assert [result.outputs[0].token_ids for result in outputs] == [expected([i], 0, 4) for i in range(100)]
    assert max(sizes) < 8


def test_a_request_to_a_full_engine_is_retried(start):
    refusals = iter([True, True, False, True])

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            if next(refusals, False):
                core.send(
                    RequestRejected(message.request_id, RejectReason.OVERLOADED, "full", retry_after_s=0.05), peer
                )
            else:
                generate()(core, peer, message)

    outputs = start(script).generate([[i] for i in range(5)], params())
    assert [result.outputs[0].token_ids for result in outputs] == [expected([i], 0, 4) for i in range(5)]


def test_a_stop_string_cuts_the_text_and_stops_the_engine(start):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            core.send(output(1, message.request_id, 0, [10, 11, 12]), peer)
        if isinstance(message, AbortRequests):
            times = RequestTimes(0.5, 0.25, 0.125, 0)
            core.send(output(1, message.stream_ids[0], 9, [], message.finish_reason, times=times), peer)

    llm = start(script)
    (result,) = llm.generate([[5]], params(100, stop=["11"]))
    sequence = result.outputs[0]
    assert (sequence.text, sequence.token_ids) == (" 10 ", [10, 11])
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", "11")
    assert result.metrics == RequestTimes(0.5, 0.25, 0.125, 0)
    assert core_of(llm).all(AbortRequests) == [AbortRequests((1,), FinishReason.STOP)]


def test_logprobs_are_keyed_by_token(start):
    def logprobs(rows, ranks):
        ids = [token for row in rows for token, _ in row]
        values = [value for row in rows for _, value in row]
        return Logprobs(pack_ids(ids), array("f", values).tobytes(), pack_ids(ranks))

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            sampled = logprobs([[(10, -3.0), (11, -0.5), (12, -1.0)], [(11, -0.25), (11, -0.25), (10, -2.0)]], [5, 1])
            prompt = logprobs([[(6, -4.0), (9, -0.5)]], [3])
            finish = FinishReason.STOP
            core.send(
                output(1, 1, 0, [10, 11], finish, logprobs=sampled, prompt_logprobs=prompt, stop_token_id=11), peer
            )

    llm = start(script)
    (result,) = llm.generate([[5, 6]], params(logprobs=2, prompt_logprobs=1, stop_token_ids=[11]))
    first, second = result.outputs[0].logprobs
    assert [(token, entry.logprob, entry.rank, entry.decoded_token) for token, entry in first.items()] == [
        (10, -3.0, 5, " 10"),
        (11, -0.5, 1, " 11"),
        (12, -1.0, 2, " 12"),
    ]
    assert [(token, entry.rank) for token, entry in second.items()] == [(11, 1), (10, 2)]
    assert result.outputs[0].cumulative_logprob == -3.25
    assert [list(entry) if entry else None for entry in result.prompt_logprobs] == [None, [6, 9]]
    assert (result.outputs[0].stop_reason, result.outputs[0].text) == (11, " 10")
    (request,) = core_of(llm).all(EngineCoreRequest)
    assert request.sampling_params.skip_reading_prefix_cache
    flat_params = params(logprobs=2, prompt_logprobs=1, stop_token_ids=[11], flat_logprobs=True)
    llm = start(script)
    (flat,) = llm.generate([[5, 6]], flat_params)
    found, prompt = flat.outputs[0].logprobs, flat.prompt_logprobs
    assert ([*found], [*prompt]) == (result.outputs[0].logprobs, [{}, result.prompt_logprobs[1]])
    assert ([*found[1:]], found[-1], len(found[:1])) == ([second], second, 1)
    assert (found.token_ids, found.ranks) == ([10, 11, 12, 11, 10], [5, 1, 2, 1, 2])
    assert (found.start_indices, found.end_indices) == ([0, 3], [3, 5])
    assert (prompt.start_indices, prompt.end_indices, prompt.logprobs) == ([0, 0], [0, 2], [-4.0, -0.5])
    assert flat.outputs[0].cumulative_logprob == -3.25
    (request,) = core_of(llm).all(EngineCoreRequest)
    assert not request.sampling_params.flat_logprobs


@pytest.mark.parametrize("at_once", [(3,), (1, 2), (1, 1, 1)], ids=str)
def test_the_sum_of_logprobs_does_not_depend_on_how_many_tokens_arrive_at_once(start, at_once):
    values = [TokenLogprobs([10], [value], 1) for value in (-16.0, -(2.0**-49), -(2.0**-49))]
    builder = OutputBuilder(start()._text.tokenizer, Prompt(None, [5, 6]), [5, 6], params(logprobs=0))
    for count in at_once:
        builder.push(SequenceDelta(0, [10] * count, [values.pop(0) for _ in range(count)]))
    assert builder.output.outputs[0].cumulative_logprob == -16.0  # the last two are lost one by one, not together


def test_bad_words_become_tokens(start):
    llm = start()
    llm.generate([[5]], params(bad_words=["8"]))
    (request,) = core_of(llm).all(EngineCoreRequest)
    assert (8,) in request.sampling_params.bad_words_token_ids


def test_choices_that_contain_bad_words_are_left_out_as_over_http(start, folder):
    texts = ["5", " 6", "7 6", "7 8", "é"]
    llm, form = start(), StructuredOutputsParams(choice=texts)
    llm.generate([[5]], params(bad_words=["6", " 5"], structured_outputs=form))
    server = Server(folder)
    asked = {"bad_words": ["6", " 5"], "structured_outputs": {"choice": texts}}
    server.complete(**asked)
    (sent,) = core_of(llm).all(EngineCoreRequest)
    sources = {sent.sampling_params.grammar.source, server.engine.requests[0].params.grammar.source}
    assert [json.loads(source)["grammars"][0]["lark_grammar"] for source in sources] == ['start: "7 8" | "é"']
    asked["bad_words"] += ["8", "é"]
    with pytest.raises(InvalidRequest, match="forbids every choice") as refused:
        llm.generate([[5]], params(bad_words=asked["bad_words"], structured_outputs=form))
    error = server.ask("POST", "/v1/completions", {"prompt": "a", **asked}).json()["error"]
    assert (error["message"], error["param"]) == (str(refused.value), "bad_words")


def test_an_interruption_aborts_and_leaves_the_llm_usable(start):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            if list(unpack_ids(message.prompt_token_ids)) == [5]:
                core.send(output(1, message.request_id, 0, [1]), peer)
            else:
                generate()(core, peer, message)

    llm = start(script)
    wait = llm._client.wait

    def interrupted(timeout_s):
        wait(timeout_s)
        if core_of(llm).all(EngineCoreRequest):
            llm._client.wait = wait
            raise KeyboardInterrupt

    llm._client.wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5]] * 3, params())
    aborted = core_of(llm).wait_for(AbortRequests, 3)
    assert sorted(stream_id for message in aborted for stream_id in message.stream_ids) == [1, 2, 3]
    (result,) = llm.generate([[6]], params())
    assert result.outputs[0].token_ids == expected([6], 0, 4)


def test_the_engines_end_is_raised_with_its_reason(start):
    def script(core, peer, message):
        pass

    llm = start(script)
    llm._engine.supervisor.reason = "worker 0 ran out of memory"
    threading.Timer(0.3, llm._engine.supervisor.stop).start()
    with pytest.raises(EngineDead, match="out of memory"):
        llm.generate([[5]], params())


def test_metrics_and_the_prefix_cache_are_reachable(start):
    def script(core, peer, message):
        if isinstance(message, UtilityCall):
            core.send(UtilityResult(message.call_id, b'{"num_running": 3}'), peer)

    llm = start(script)
    assert llm.get_metrics() == {"num_running": 3}
    assert llm.reset_prefix_cache()
    assert [call.utility for call in core_of(llm).all(UtilityCall)] == [Utility.STATS, Utility.RESET_PREFIX_CACHE]


def test_closing_ends_the_engine_and_its_thread(start):
    with start() as llm:
        run_dir = llm._engine.supervisor.run_dir
    llm.close()
    assert not any(thread.name in ("supervisor", "fake-core") for thread in threading.enumerate())
    with pytest.raises(EngineDead):
        llm.generate([[5]], params())
    assert not Path(run_dir).exists()

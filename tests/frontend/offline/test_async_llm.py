"""AsyncLLM over a fake engine: the order of waiting requests, refusals, and the errors of the engine's end."""

import asyncio
import threading

import pytest

from paged_serve import AsyncLLM
from paged_serve.frontend.offline import local_engine
from paged_serve.frontend.offline.in_flight import InFlightLimit
from paged_serve.frontend.offline.outputs import FlatLogprobs
from paged_serve.protocol import errors
from paged_serve.protocol.errors import EngineDead, InvalidRequest, Overloaded
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest, RejectReason, RequestRejected
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, RequestOutputKind, SamplingParams

from ..fake_core import expected, generate, output
from ..fake_supervisor import FakeSupervisor, write_model_of_numbers

PARAMS = SamplingParams(max_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model_of_numbers(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(folder, monkeypatch):
    """run(body, script) -> the result of `body(llm)`, with an AsyncLLM over a core that follows the script."""
    monkeypatch.setattr(local_engine, "Supervisor", FakeSupervisor)

    def run(body, script=None, **options):
        monkeypatch.setattr(FakeSupervisor, "script", staticmethod(script or generate()))

        async def main():
            async with AsyncLLM(folder, **options) as llm:
                return await asyncio.wait_for(body(llm), 60)

        return asyncio.run(main())

    return run


def core_of(llm):
    return llm._engine.supervisor.core


async def last(outputs):
    return [each async for each in outputs][-1]


def prompts_sent(llm):
    return [[*unpack_ids(request.prompt_token_ids)] for request in core_of(llm).all(EngineCoreRequest)]


def test_a_prompt_is_cut_to_what_fits_with_its_output(run):
    cut = {"truncate_prompt_tokens": -1}
    output = run(lambda llm: last(llm.generate([5] * 5000, SamplingParams(max_tokens=10), tokenization_kwargs=cut)))
    assert len(output.prompt_token_ids) == 4086  # of a context of 4096


def test_a_yielded_output_never_changes(run):
    async def body(llm):
        return [each async for each in llm.generate([5, 6], SamplingParams(max_tokens=50, n=2))]

    outputs = run(body, generate(pause_s=0.002))
    assert len(outputs) > 2
    for index in range(2):
        whole = expected([5, 6], index, 50)
        lengths = [len(output.outputs[index].token_ids) for output in outputs]
        assert lengths == sorted(lengths)
        assert all(output.outputs[index].token_ids == whole[: lengths[i]] for i, output in enumerate(outputs))
    assert [each.finished for each in outputs][-2:] == [False, True]


def test_outputs_have_only_new_parts_or_everything_at_the_end(run):
    def params(kind):
        flat = kind is RequestOutputKind.DELTA
        return SamplingParams(max_tokens=50, n=2, logprobs=0, output_kind=kind, flat_logprobs=flat)

    async def body(llm):
        kinds = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
        deltas, finals = [[each async for each in llm.generate("5 6", params(kind))] for kind in kinds]
        assert {request.sampling_params.output_kind for request in core_of(llm).all(EngineCoreRequest)} == {0}
        return deltas, finals

    deltas, [final] = run(body, generate(pause_s=0.002))
    assert len(deltas) > 2
    assert [each.finished for each in deltas] == [False] * (len(deltas) - 1) + [True]
    for index, whole in enumerate(final.outputs):
        parts = [each for output in deltas for each in output.outputs if each.index == index]
        assert "".join(each.text for each in parts) == whole.text
        assert [token for each in parts for token in each.token_ids] == whole.token_ids == expected([5, 6], index, 50)
        assert {type(each.logprobs) for each in parts} == {FlatLogprobs}
        assert [logprob for each in parts for logprob in each.logprobs] == whole.logprobs
        assert [each.finish_reason for each in parts] == [None] * (len(parts) - 1) + [whole.finish_reason]
    with pytest.raises(InvalidRequest, match="output_kind is 'delta'"):
        params("delta")


def test_a_request_to_a_full_engine_is_retried(run):
    refusals = iter([True, True, False])

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest) and next(refusals, False):
            core.send(RequestRejected(message.request_id, RejectReason.OVERLOADED, "full", retry_after_s=0.01), peer)
        else:
            generate()(core, peer, message)

    async def body(llm):
        return (await last(llm.generate([5], PARAMS))).outputs[0].token_ids, prompts_sent(llm)

    assert run(body, script) == (expected([5], 0, 4), [[5]] * 3)


def test_a_request_aborted_before_its_retry_ends_at_once(run, monkeypatch):
    monkeypatch.setattr(errors, "MAX_PAUSE_S", 3600.0)

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            core.send(RequestRejected(message.request_id, RejectReason.OVERLOADED, "full", retry_after_s=3600), peer)

    async def body(llm):
        ends = asyncio.create_task(last(llm.generate([5], PARAMS, "mine")))
        while not core_of(llm).all(EngineCoreRequest):
            await asyncio.sleep(0.005)
        await llm.abort("mine")
        return await ends

    aborted = run(body, script)
    assert (aborted.finished, aborted.outputs[0].finish_reason, aborted.outputs[0].token_ids) == (True, "abort", [])


def test_a_request_to_a_draining_engine_is_not_retried(run):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            core.send(RequestRejected(message.request_id, RejectReason.DRAINING, "drains"), peer)

    async def body(llm):
        with pytest.raises(Overloaded):
            await last(llm.generate([5], PARAMS))

    run(body, script)


def test_requests_over_the_bound_wait_by_priority_then_by_arrival(run):
    def script(core, peer, message):
        if isinstance(message, AbortRequests):
            core.send(output(1, message.stream_ids[0], 0, [], FinishReason.ABORT), peer)
        elif isinstance(message, EngineCoreRequest) and message.prompt_token_ids != first:
            generate()(core, peer, message)

    first = None

    async def body(llm):
        nonlocal first
        first = pack_ids([1])
        runs = [asyncio.create_task(last(llm.generate([1], PARAMS, f"first{n}"))) for n in range(4)]
        waits = [([2], 0), ([3], 5), ([4], -1), ([5], 0)]
        runs += [asyncio.create_task(last(llm.generate(ids, PARAMS, priority=rank))) for ids, rank in waits]
        cancelled = asyncio.create_task(last(llm.generate([6], PARAMS)))
        while len(prompts_sent(llm)) < 4 or len(llm._limit._waiting) < 5:
            await asyncio.sleep(0.005)
        cancelled.cancel()
        await llm.abort("first0")
        for each in runs[4:]:
            await each
        await llm.abort(f"first{n}" for n in range(4))
        await asyncio.gather(*runs)
        return prompts_sent(llm)

    assert run(body, script, max_num_seqs=1) == [[1]] * 4 + [[4], [2], [5], [3]]


@pytest.mark.parametrize("gives_up", ["cancels", "sets false", "had entered"])
def test_a_cancelled_entry_frees_its_room_for_the_next(gives_up):
    async def main():
        limit = InFlightLimit(2)
        held, second, third = limit.entry(2, 0), limit.entry(2, 0), limit.entry(1, 0)
        assert held.result()
        assert not second.done()
        if gives_up == "cancels":
            second.cancel()
        elif gives_up == "sets false":
            second.set_result(False)
        limit.leave(2)
        if gives_up == "had entered":
            assert second.result()
            assert not third.done()
            limit.leave(2)
        assert third.result()
        return limit._num_sequences

    assert asyncio.run(main()) == 1


def test_a_priority_that_is_no_integer_is_refused_and_does_not_wait_among_others():
    async def main():
        limit = InFlightLimit(1)
        held = limit.entry(1, 0)
        for wrong in ("0", None, 2**40):
            with pytest.raises(InvalidRequest, match=r"priority is .*; it must be an integer of 32 bits"):
                limit.entry(1, wrong)
        waiting = [limit.entry(1, priority) for priority in (1, 0)]
        limit.leave(1)
        return held.done(), [entry.done() for entry in waiting]

    assert asyncio.run(main()) == (True, [False, True])


def test_the_engines_end_raises_its_reason_in_running_and_waiting_requests(run):
    def script(core, peer, message):
        pass

    async def body(llm):
        supervisor = llm._engine.supervisor
        running = [asyncio.create_task(last(llm.generate([5], PARAMS))) for _ in range(6)]
        while len(prompts_sent(llm)) < 4:
            await asyncio.sleep(0.005)
        supervisor.reason = "worker 0 ran out of memory"
        threading.Timer(0.05, supervisor.stop).start()
        ends = await asyncio.gather(*running, return_exceptions=True)
        with pytest.raises(EngineDead, match="out of memory"):
            await llm.check_health()
        return ends

    ends = run(body, script, max_num_seqs=1)
    assert [type(end) for end in ends] == [EngineDead] * 6
    assert all("out of memory" in str(end) for end in ends)


def test_an_event_loop_that_did_not_start_it_is_refused(folder, monkeypatch):
    monkeypatch.setattr(local_engine, "Supervisor", FakeSupervisor)
    llm = AsyncLLM(folder)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(last(llm.generate([5], PARAMS)))
    with pytest.raises(EngineDead, match="belongs to the event loop that started it"):
        asyncio.run(last(llm.generate([5], PARAMS)))
    loop.run_until_complete(llm.shutdown())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_a_shutdown_ends_the_requests_that_wait_for_the_start_with_an_error(folder, monkeypatch):
    monkeypatch.setattr(local_engine, "Supervisor", FakeSupervisor)

    async def main():
        llm = AsyncLLM(folder)
        waiting = [asyncio.create_task(last(llm.generate([5], PARAMS))) for _ in range(2)]
        await asyncio.sleep(0)
        await llm.shutdown()
        return await asyncio.gather(*waiting, return_exceptions=True)

    ends = asyncio.run(main())
    assert [str(end) for end in ends] == ["this AsyncLLM was shut down; create another"] * 2
    assert all(isinstance(end, EngineDead) for end in ends)


def test_a_shutdown_after_the_end_of_its_event_loop_ends_the_engine(folder, monkeypatch):
    monkeypatch.setattr(local_engine, "Supervisor", FakeSupervisor)
    llm = AsyncLLM(folder)
    asyncio.run(last(llm.generate([5], PARAMS)))
    asyncio.run(llm.shutdown())
    assert not llm._finalizer.alive
    with pytest.raises(EngineDead, match="was shut down"):
        asyncio.run(llm.start())


def test_a_request_refused_before_the_engine_names_its_field(run):
    async def body(llm):
        for prompt, options, field in [
            ([[1], [2]], {}, "prompt"),
            (5, {}, "prompts"),
            ([1], {"lora_request": object()}, "lora_request"),
        ]:
            with pytest.raises(InvalidRequest) as refused:
                await last(llm.generate(prompt, PARAMS, **options))
            assert refused.value.param == field
        with pytest.raises(InvalidRequest, match="it must be of the class SamplingParams"):
            await last(llm.generate([1], {"temperature": 0}))
        with pytest.raises(InvalidRequest, match=r"request_id is 5; it must be of the class str"):
            await last(llm.generate([1], PARAMS, 5))
        with pytest.raises(InvalidRequest) as refused:
            await last(llm.chat([{"role": "narrator", "content": "x"}], PARAMS))
        assert refused.value.param.startswith("messages")
        return llm._generations, llm._limit._num_sequences, prompts_sent(llm)

    assert run(body) == ({}, 0, [])


def test_chats_with_their_own_templates_may_run_concurrently(run):
    async def body(llm):
        def chat(number):
            template = f"{number % 2}:" + "{{ messages[0]['content'] }}"
            return last(llm.chat([{"role": "user", "content": "x"}], PARAMS, chat_template=template))

        return [each.prompt for each in await asyncio.gather(*map(chat, range(4)))]

    assert run(body) == ["0:x", "1:x"] * 2

"""However a reader leaves, its request is aborted in the engine."""

import asyncio
import gc

import pytest

from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import PROMPT, aborted_ids, collect, output, start_one_token, with_client


def test_leaving_the_loop_early_aborts(run_dir, start_core):
    core = start_core(script=start_one_token)

    async def body(client):
        request = client.submit(PROMPT, SamplingParams())
        async for _ in request:
            break
        await asyncio.to_thread(core.wait_for, AbortRequests)  # before the client closes, which aborts as well
        return request.request_id

    stream_id = with_client(run_dir, body)
    assert aborted_ids(core) == [stream_id]


def test_cancelling_the_reader_aborts(run_dir, start_core):
    core = start_core(script=start_one_token)

    async def body(client):
        task = asyncio.create_task(collect(client.submit(PROMPT, SamplingParams())))
        await asyncio.to_thread(core.wait_for, EngineCoreRequest)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(core.wait_for, AbortRequests)

    with_client(run_dir, body)


def test_a_time_limit_on_one_step_of_the_iteration_does_not_abort(run_dir, start_core):
    core = start_core(script=start_one_token)

    async def body(client):
        request = client.submit(PROMPT, SamplingParams())
        first = await anext(request)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(request), 0.05)
        core.do(output(1, request.request_id, 1, [2], FinishReason.STOP))
        second = await anext(request)
        return first.token_ids + second.token_ids, core.all(AbortRequests)

    assert with_client(run_dir, body) == ([1, 2], [])


def test_a_second_reader_is_refused_and_the_first_one_continues(run_dir, start_core):
    core = start_core(script=start_one_token)

    async def body(client):
        request = client.submit(PROMPT, SamplingParams())
        await anext(request)
        first = asyncio.create_task(anext(request))
        await asyncio.sleep(0)  # now it waits
        with pytest.raises(RuntimeError, match="one reader at a time"):
            await anext(request)
        core.do(output(1, request.request_id, 1, [2], FinishReason.STOP))
        return (await first).token_ids

    assert with_client(run_dir, body) == [2]


def test_a_dropped_request_is_aborted(run_dir, start_core):
    core = start_core(script=start_one_token)
    with Client.connect(run_dir, timeout_s=60) as client:
        request = client.submit(PROMPT, SamplingParams())
        del request
        gc.collect()
        aborted_ids(core)  # sent by the client's background thread, although no stream is read


def test_leaving_the_plain_loop_early_aborts(run_dir, start_core):
    core = start_core(script=start_one_token)
    with Client.connect(run_dir, timeout_s=60) as client:
        request = client.submit(PROMPT, SamplingParams())
        for _ in request:
            break
        assert aborted_ids(core) == [request.request_id]


def test_closing_the_client_aborts_running_requests(run_dir, start_core):
    core = start_core(script=start_one_token)
    with Client.connect(run_dir, timeout_s=60) as client:
        requests = [client.submit(PROMPT, SamplingParams(n=2)) for _ in range(3)]
        core.wait_for(EngineCoreRequest, 3)
    assert sorted(aborted_ids(core, 3)) == [1, 2, 3, 4, 5, 6]
    with pytest.raises(EngineDead, match="closed"):
        list(requests[0])


def finish_aborted(core, peer, message):
    start_one_token(core, peer, message)
    if isinstance(message, AbortRequests):
        for stream_id in message.stream_ids:
            core.send(output(core.epoch, stream_id, 1, [99], message.finish_reason), peer)


def test_an_aborted_sequence_ends_with_the_reason_given_and_no_more_tokens(run_dir, start_core):
    core = start_core(script=finish_aborted)
    with Client.connect(run_dir, timeout_s=60) as client:
        request = client.submit(PROMPT, SamplingParams())
        first = next(request)
        request.abort(finish_reason=FinishReason.STOP)
        request.abort()
        (last,) = list(request)
        request.abort()
        assert (first.token_ids, last.token_ids, last.finish_reason) == ([1], [], FinishReason.STOP)
        assert len(core.all(AbortRequests)) == 1


def test_one_sequence_can_be_aborted_while_the_others_continue(run_dir, start_core):
    def script(core, peer, message):
        finish_aborted(core, peer, message)
        if isinstance(message, AbortRequests):
            for i in (0, 2):
                core.send(output(core.epoch, 1 + i, 1 if i == 0 else 0, [7, 8], FinishReason.LENGTH), peer)

    start_core(script=script)
    with Client.connect(run_dir, timeout_s=60) as client:
        request = client.submit(PROMPT, SamplingParams(n=3))
        next(request)
        request.abort(1, FinishReason.STOP)
        ends = {delta.index: (delta.token_ids, delta.finish_reason) for delta in request}
    length = FinishReason.LENGTH
    assert ends == {0: ([7, 8], length), 1: ([], FinishReason.STOP), 2: ([7, 8], length)}

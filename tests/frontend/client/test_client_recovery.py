"""Whatever happens to the engine core or the link, a reader gets the right tokens or a clear error."""

import asyncio
import gc
import random
import socket
import threading
import time

import pytest

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.messages.engine_core import EngineCoreRequest, EngineFailed, OutputsReceived
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams
from paged_serve.protocol.transport.run_dir import CONTROL_SOCKET, remove_run_dir

from ..fake_core import (
    PROMPT,
    aborted_ids,
    collect,
    columns,
    expected,
    generate,
    output,
    start_one_token,
    token,
    tokens_of,
    with_client,
)


def test_repeated_and_stale_tokens_are_dropped(run_dir, start_core):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            stream = message.request_id
            for frame in (
                output(1, stream, 0, [10, 11]),
                output(1, stream, 1, [11, 12]),
                columns(1, 0, [(stream, 2, 12), (stream + 50, 0, 9)]),
                columns(0, 1, [(stream, 2, 99)]),
                output(0, stream, 3, [99], FinishReason.STOP),
                columns(1, 1, [(stream, 2, 13), (stream + 50, 0, 9)]),
                output(1, stream, 3, [13, 14], FinishReason.STOP),
                output(1, stream, 5, [15], FinishReason.STOP),
            ):
                core.send(frame, peer)

    start_core(script=script)
    with Client.connect(run_dir, timeout_s=60) as client:
        deltas = list(client.submit(PROMPT, SamplingParams()))
    assert tokens_of(deltas) == [10, 11, 12, 13, 14]


def test_a_missing_token_makes_the_client_resend_the_request_from_there(run_dir, start_core):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest) and not message.resume_token_ids:
            core.send(output(1, message.request_id, 0, [token(PROMPT, 0, 0)]), peer)
            core.send(output(1, message.request_id, 2, [token(PROMPT, 0, 2)]), peer)  # number 1 was lost
        else:
            generate()(core, peer, message)

    core = start_core(script=script)
    with Client.connect(run_dir, timeout_s=60) as client:
        deltas = list(client.submit(PROMPT, SamplingParams(max_tokens=6)))
    assert tokens_of(deltas) == expected(PROMPT, 0, 6)
    assert aborted_ids(core) == [1]
    assert [message.request_id for message in core.all(EngineCoreRequest)] == [1, 2]


def test_a_core_restart_loses_and_repeats_no_token(run_dir, start_core):
    first = start_core(script=generate(frames_left=[40]))

    async def body(client):
        requests = [client.submit([p], SamplingParams(n=p, max_tokens=20)) for p in (1, 2, 3)]
        tasks = [asyncio.create_task(collect(request, p)) for p, request in zip((1, 2, 3), requests, strict=True)]
        await asyncio.to_thread(first.wait_for, EngineCoreRequest, 3)
        while sum(message.frames for message in first.all(OutputsReceived)) < 41:  # 40 tokens, and an end
            await asyncio.sleep(0.01)
        await asyncio.to_thread(first.kill)
        assert not any(task.done() for task in tasks[1:])
        second = start_core(epoch=2, script=generate())
        results = await asyncio.gather(*tasks)
        return results, second.all(EngineCoreRequest), client.limits.epoch

    results, again, epoch = with_client(run_dir, body)
    for p, (tokens, reasons) in zip((1, 2, 3), results, strict=True):
        assert tokens == [expected([p], i, 20) for i in range(p)]
        assert reasons == [FinishReason.LENGTH] * p
    assert epoch == 2
    assert [len(unpack_ids(ids)) for ids in again[0].resume_token_ids] == [10, 10]  # 20 frames went to the first


def test_the_plain_client_follows_a_restart_even_while_no_stream_is_read(run_dir, start_core):
    first = start_core(script=generate(frames_left=[10]))
    with Client.connect(run_dir, timeout_s=60) as client:
        request = client.submit(PROMPT, SamplingParams(max_tokens=20))
        got = next(request).token_ids
        first.wait_for(EngineCoreRequest)
        first.do(EngineFailed("out of luck"))
        first.mute = True  # it would welcome the client again
        while client.ready:
            time.sleep(0.01)
        first.kill()
        start_core(epoch=5, script=generate()).wait_for(EngineCoreRequest)  # the client's background thread sends Hello
        for delta in request:
            got += delta.token_ids
    assert got == expected(PROMPT, 0, 20)


def test_requests_wait_while_the_engine_is_away(run_dir, start_core):
    first = start_core()

    async def body(client):
        first.do(EngineFailed("restarting"))
        first.mute = True  # it would welcome the client again
        while client.ready:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(first.kill)
        task = asyncio.create_task(collect(client.submit(PROMPT, SamplingParams(max_tokens=3))))
        start_core(epoch=2, script=generate())
        return await task

    assert with_client(run_dir, body)[0] == [expected(PROMPT, 0, 3)]


def test_silence_is_noticed_and_nothing_is_lost_when_it_ends(run_dir, start_core):
    core = start_core(script=start_one_token)

    async def body(client):
        request = client.submit(PROMPT, SamplingParams())
        await anext(request)
        core.mute = True
        while client.ready:
            await asyncio.sleep(0.02)
        core.mute = False
        core.do(output(1, request.request_id, 1, [2], FinishReason.STOP))
        delta = await anext(request)
        while not client.ready:
            await asyncio.sleep(0.02)
        return delta.token_ids, len(core.all(EngineCoreRequest))

    assert with_client(run_dir, body) == ([2], 1)


def test_an_absent_core_is_reported_in_time(run_dir):
    started = time.monotonic()
    with pytest.raises(EngineDead, match=r"no answer .* 0.5 s"):
        Client.connect(run_dir, timeout_s=0.5)
    with pytest.raises(EngineDead, match=r"no answer .* 0.5 s"):
        asyncio.run(AsyncClient.connect(run_dir, timeout_s=0.5))
    assert time.monotonic() - started < 60
    with pytest.raises(EngineDead, match="is a server running"):
        Client.connect(run_dir + "-not-there")


def test_a_refusal_is_raised(run_dir, start_core):
    start_core().refusal = "message definitions differ"
    with pytest.raises(EngineDead, match="definitions differ"):
        Client.connect(run_dir, timeout_s=60)
    with pytest.raises(EngineDead, match="definitions differ"):
        asyncio.run(AsyncClient.connect(run_dir, timeout_s=60))


def test_a_server_that_ended_is_not_waited_for(run_dir, start_core):
    core = start_core(script=start_one_token)

    async def body(client):
        request = client.submit(PROMPT, SamplingParams())
        await anext(request)
        await asyncio.to_thread(core.kill)
        remove_run_dir(run_dir)
        with pytest.raises(EngineDead, match="has ended"):
            await anext(request)
        with pytest.raises(EngineDead, match="has ended"):
            await anext(client.submit(PROMPT, SamplingParams()))

    with_client(run_dir, body)


def test_a_server_that_was_killed_is_not_waited_for_though_its_directory_is_still_there(run_dir, start_core):
    core = start_core(script=start_one_token)
    supervisor = socket.socket(socket.AF_UNIX)
    supervisor.bind(f"{run_dir}/{CONTROL_SOCKET}")
    supervisor.listen()

    async def body(client):
        request = client.submit(PROMPT, SamplingParams())
        await anext(request)
        await asyncio.to_thread(core.kill)
        supervisor.close()
        with pytest.raises(EngineDead, match="has ended"):
            await anext(request)

    with_client(run_dir, body)


def test_a_client_leaves_no_thread_behind(run_dir, start_core):
    start_core()
    before = threading.active_count()
    client = Client.connect(run_dir, timeout_s=60)
    del client
    gc.collect()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before


def test_garbage_from_the_engine_is_dropped_and_the_stream_continues(run_dir, start_core):
    rng = random.Random(0)

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            for _ in range(200):
                core._channel.socket.send_multipart([peer, rng.randbytes(rng.randint(0, 60))])
            core._channel.socket.send_multipart([peer, b"two", b"frames"])
        generate()(core, peer, message)

    start_core(script=script)
    with Client.connect(run_dir, timeout_s=60) as client:
        deltas = list(client.submit(PROMPT, SamplingParams(max_tokens=20)))
    assert tokens_of(deltas) == expected(PROMPT, 0, 20)

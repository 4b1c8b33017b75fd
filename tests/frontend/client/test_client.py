"""The client library against a scripted engine core over real sockets."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import uvloop

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.client.wire import find_run_dir
from paged_serve.protocol.errors import ConfigError, EngineDead, InvalidRequest, Overloaded, PagedServeError
from paged_serve.protocol.messages.engine_core import (
    EngineCoreRequest,
    OutputsReceived,
    RejectReason,
    RequestRejected,
    Utility,
    UtilityCall,
    UtilityResult,
)
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import PROMPT, collect, expected, generate, output, tokens_of, with_client


def test_importing_the_client_loads_no_heavy_library():
    code = (
        "import sys; from paged_serve import Client, AsyncClient, SamplingParams; "
        "heavy = {'torch', 'numpy', 'tokenizers', 'starlette', 'jinja2', 'uvicorn', 'transformers'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_client_without_asyncio_does_not_import_it():
    code = "import sys; from paged_serve import Client; print('asyncio' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_a_stream_arrives_token_by_token(run_dir, start_core):
    start_core(script=generate())

    async def body(client):
        return await collect(client.submit(PROMPT, SamplingParams(max_tokens=50)))

    assert with_client(run_dir, body) == ([expected(PROMPT, 0, 50)], [FinishReason.LENGTH])


def test_the_plain_client_streams_too(run_dir, start_core):
    start_core(script=generate())
    with Client.connect(run_dir, timeout_s=60) as client:
        deltas = list(client.submit(PROMPT, SamplingParams(max_tokens=50)))
    assert tokens_of(deltas) == expected(PROMPT, 0, 50)
    assert deltas[-1].finish_reason == FinishReason.LENGTH


def test_each_of_n_sequences_gets_its_own_tokens(run_dir, start_core):
    start_core(script=generate())

    async def body(client):
        requests = [client.submit(PROMPT, SamplingParams(n=n, max_tokens=9)) for n in (3, 1, 2)]
        return await asyncio.gather(*(collect(request, n) for request, n in zip(requests, (3, 1, 2), strict=True)))

    for n, (tokens, reasons) in zip((3, 1, 2), with_client(run_dir, body), strict=True):
        assert tokens == [expected(PROMPT, i, 9) for i in range(n)]
        assert reasons == [FinishReason.LENGTH] * n


def test_the_request_carries_every_argument(run_dir, start_core):
    core = start_core(script=generate())
    params = SamplingParams(max_tokens=1, temperature=0.5, seed=4)
    with Client.connect(run_dir, timeout_s=60) as client:
        terms = {"priority": -3, "cache_salt": "tenant", "tenant": "t", "weight": 0.5, "timeout_s": 60}
        list(client.submit(PROMPT, params, **terms))
    (request,) = core.all(EngineCoreRequest)
    assert (request.tenant, request.weight) == ("t", 0.5)
    assert 0 < request.ttl_s <= 60
    assert list(unpack_ids(request.prompt_token_ids)) == PROMPT
    assert (request.sampling_params, request.priority, request.cache_salt) == (params, -3, "tenant")
    assert request.resume_token_ids == ()


def test_numbers_and_texts_of_numpy_are_sent_as_those_of_python(run_dir, start_core):
    core = start_core(script=generate())
    half, word = np.float64(0.5), np.str_("x")
    params = SamplingParams(max_tokens=1, temperature=half, stop=[word], logit_bias={5: half})
    with Client.connect(run_dir, timeout_s=60) as client:
        list(client.submit(PROMPT, params, cache_salt=word, weight=half, timeout_s=np.float64(60)))
    (request,) = core.all(EngineCoreRequest)
    assert request.sampling_params == SamplingParams(max_tokens=1, temperature=0.5, stop=["x"], logit_bias={5: 0.5})
    assert (request.cache_salt, request.weight) == ("x", 0.5)


def test_every_frame_is_acknowledged(run_dir, start_core):
    core = start_core(script=generate())
    with Client.connect(run_dir, timeout_s=60) as client:
        for _ in range(3):
            list(client.submit(PROMPT, SamplingParams(max_tokens=100)))
        deadline = time.monotonic() + 60
        while sum(message.frames for message in core.all(OutputsReceived)) < 303 and time.monotonic() < deadline:
            client.wait(0.05)
    acknowledged = core.all(OutputsReceived)
    assert sum(message.frames for message in acknowledged) == 303
    assert len(acknowledged) < 40  # several together, not one by one


def test_a_slow_reader_gets_everything_since_its_last_read_in_one_delta(run_dir, start_core):
    core = start_core(script=generate())
    with Client.connect(run_dir, timeout_s=60) as client:
        request = client.submit(PROMPT, SamplingParams(max_tokens=500))
        while sum(message.frames for message in core.all(OutputsReceived)) < 501:
            time.sleep(0.05)  # no stream is read; the client's background thread receives the frames
        assert len(request._streams.ready) == 1
        (delta,) = list(request)
    assert delta.token_ids == expected(PROMPT, 0, 500)
    assert delta.finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize(
    ("reason", "error", "facts"),
    [
        (RejectReason.INVALID, InvalidRequest, {"param": "top_k"}),
        (RejectReason.OVERLOADED, Overloaded, {"retry_after_s": 2.5, "draining": False}),
        (RejectReason.DRAINING, Overloaded, {"retry_after_s": 2.5, "draining": True}),
    ],
)
def test_a_rejection_raises_the_exception_of_its_reason(run_dir, start_core, reason, error, facts):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            core.send(RequestRejected(message.request_id, reason, "because", "top_k", 2.5), peer)

    start_core(script=script)

    async def body(client):
        await collect(client.submit(PROMPT, SamplingParams()))

    with pytest.raises(error, match="because") as raised:
        with_client(run_dir, body)
    assert {name: getattr(raised.value, name) for name in facts} == facts
    with Client.connect(run_dir, timeout_s=60) as client, pytest.raises(error, match="because"):
        list(client.submit(PROMPT, SamplingParams()))


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ([], {}, "prompt_token_ids"),
        ([1000], {}, "prompt_token_ids"),
        ([-1], {}, "prompt_token_ids"),
        ([2**40], {}, "prompt_token_ids"),
        (["a"], {}, "prompt_token_ids"),
        ([1, True], {}, "prompt_token_ids"),
        ([1] * 4096, {}, "prompt_token_ids"),
        (b"5678", {}, "prompt_token_ids"),
        (b"56", {}, "prompt_token_ids"),
        (bytearray(b"5678"), {}, "prompt_token_ids"),
        (iter([1]), {}, "prompt_token_ids"),
        ([1], {"adapter": "poet"}, "adapter"),
        ([1], {"adapter": Adapter("poet", "/poet", "no digest")}, "adapter"),
        ([1], {"priority": 2**31}, "priority"),
        ([1], {"priority": True}, "priority"),
        ([1], {"cache_salt": "x" * 129}, "cache_salt"),
        ([1], {"cache_salt": "a\ud83d"}, "cache_salt"),
        ([1], {"tenant": "x" * 257}, "tenant"),
        ([1], {"tenant": "a\ud83d"}, "tenant"),
        ([1], {"weight": 0}, "weight"),
        ([1], {"weight": float("nan")}, "weight"),
        ([1], {"weight": True}, "weight"),
        ([1], {"timeout_s": -1.0}, "timeout_s"),
        ([1], {"timeout_s": 86401}, "timeout_s"),
    ],
)
def test_a_request_that_the_core_would_drop_unread_is_refused_at_once(run_dir, start_core, prompt, fields, param):
    core = start_core()
    with Client.connect(run_dir, timeout_s=60) as client:
        with pytest.raises(InvalidRequest) as raised:
            next(client.submit(prompt, SamplingParams(), **fields))
        with pytest.raises(InvalidRequest, match="ignore_eos"):
            next(client.submit([1], SamplingParams(ignore_eos="yes")))
    assert raised.value.param == param
    assert core.all(EngineCoreRequest) == []


@pytest.mark.parametrize("params", [None, {"temperature": 0}, SamplingParams])
def test_parameters_of_another_type_are_refused_before_they_are_sent(run_dir, start_core, params):
    core = start_core()
    with Client.connect(run_dir, timeout_s=60) as client:
        with pytest.raises(InvalidRequest, match=r"sampling_params is .*; it must be of the class SamplingParams"):
            next(client.submit(PROMPT, params))
        with pytest.raises(InvalidRequest, match=r"pooling_params is .*; it must be of the class PoolingParams"):
            client.pool(PROMPT, params)
        with pytest.raises(InvalidRequest, match="on_output is 5; it must be a function"):
            client.submit(PROMPT, SamplingParams(), on_output=5)
        with pytest.raises(InvalidRequest, match="finish_reason is 'stop'; it must be of the class FinishReason"):
            client.submit(PROMPT, SamplingParams()).abort(finish_reason="stop")
        with pytest.raises(InvalidRequest, match="utility is 'STATS'; it must be of the class Utility"):
            client.utility("STATS")
        core.wait_for(EngineCoreRequest)
    assert [message.sampling_params for message in core.all(EngineCoreRequest)] == [SamplingParams()]


def test_the_address_of_an_http_server_is_refused_with_what_to_give_instead():
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:8000 is not the address of an engine; give the run"):
        Client.connect("http://127.0.0.1:8000")


@pytest.mark.parametrize(
    ("server", "more", "says"),
    [
        (5, {}, "server is 5; it must be a string or a path"),
        (b"/run", {}, "server is b'/run'; it must be a string or a path"),
        ("tcp://127.0.0.1:1", {"key": 5, "server_key": "a"}, "key is 5; it must be a string or a path"),
        ("tcp://127.0.0.1:1", {"key": "a", "server_key": 7}, "server_key is 7; it must be a string or a path"),
        ("/run", {"timeout_s": "a"}, "timeout_s is 'a'; it must be a number of seconds"),
        ("/run", {"timeout_s": None}, "timeout_s is None; it must be a number of seconds"),
        ("/run", {"away_s": float("nan")}, "away_s is nan; it must be a number of seconds"),
        ("/run", {"away_s": -1}, "away_s is -1; it must be a number of seconds, at least 0"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_by_name(server, more, says):
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}"):
        Client.connect(server, **more)
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}"):
        asyncio.run(AsyncClient.connect(server, **more))


def test_the_run_directory_may_be_a_path(run_dir, start_core):
    start_core(script=generate())
    with Client.connect(Path(run_dir), timeout_s=60) as client:
        assert client.ready


def test_the_engines_reason_for_ending_a_sequence_is_delivered(run_dir, start_core):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            core.send(output(1, message.request_id, 0, [], FinishReason.ERROR, error="not finite"), peer)

    start_core(script=script)
    with Client.connect(run_dir, timeout_s=60) as client:
        (delta,) = list(client.submit(PROMPT, SamplingParams()))
    assert (delta.finish_reason, delta.error) == (FinishReason.ERROR, "not finite")


def test_utilities_answer_or_raise(run_dir, start_core):
    def script(core, peer, message):
        if isinstance(message, UtilityCall):
            broken = message.utility == Utility.CHECK_INVARIANTS
            core.send(UtilityResult(message.call_id, b"{}", "block 7 has two owners" if broken else ""), peer)

    start_core(script=script)

    async def body(client):
        assert await client.utility(Utility.STATS) == b"{}"
        with pytest.raises(PagedServeError, match="two owners"):
            await client.utility(Utility.CHECK_INVARIANTS)

    with_client(run_dir, body)
    with Client.connect(run_dir, timeout_s=60) as client:
        assert client.utility(Utility.RESET_PREFIX_CACHE) == b"{}"


def test_the_newest_living_server_is_found(run_dir, start_core, monkeypatch):
    monkeypatch.setattr("paged_serve.frontend.client.wire.find_run_dirs", lambda: [run_dir, "older"])
    start_core(script=generate())
    assert find_run_dir() == run_dir
    with Client.connect(timeout_s=60) as client:
        assert client.limits.max_model_len == 4096
    monkeypatch.setattr("paged_serve.frontend.client.wire.find_run_dirs", list)
    with pytest.raises(EngineDead, match="paged-serve serve"):
        Client.connect()


def test_several_threads_share_a_plain_client(run_dir, start_core):
    start_core(script=generate(pause_s=0.001))
    results = {}
    with Client.connect(run_dir, timeout_s=60) as client:

        def read(prompt):
            results[prompt] = tokens_of(client.submit([prompt], SamplingParams(max_tokens=30)))

        threads = [threading.Thread(target=read, args=(prompt,)) for prompt in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {prompt: expected([prompt], 0, 30) for prompt in range(4)}


def test_a_request_travels_under_uvloop_too(run_dir, start_core):
    start_core(script=generate())

    async def main():
        async with await AsyncClient.connect(run_dir, timeout_s=60) as client:
            requests = [client.submit([p], SamplingParams(max_tokens=30)) for p in range(20)]
            return await asyncio.gather(*(collect(request) for request in requests))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(main())
    assert [tokens for (tokens,), _ in results] == [expected([p], 0, 30) for p in range(20)]

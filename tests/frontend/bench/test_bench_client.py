"""The load generator against servers that answer correctly, incorrectly, late, or not at all."""

import asyncio
import time
from itertools import pairwise

import pytest

from paged_serve.frontend.bench.load.load import LoadRequest
from paged_serve.frontend.bench.load.open_loop import LoadGenerator, Server
from paged_serve.frontend.bench.load.openai_answer import Answer
from paged_serve.frontend.bench.load.timeline import Timeline
from paged_serve.frontend.bench.report.load_result import LoadResult
from paged_serve.frontend.bench.report.load_tables import notes

from .fake_openai import HEAD, chunked, event, raw, server_of, silence, streamed, text, usage, whole

REQUEST = LoadRequest([1, 2, 3], max_tokens=4)
DONE = event(b"[DONE]")
GOOD = (text("a"), text("b"), text("c"), text("d", "length"), usage(3, 4), DONE)


def load(answer, times=(0.0,), request=REQUEST, max_concurrency=0, **options) -> list[Timeline]:
    async def main():
        async with server_of(answer) as (url, _):
            generator = LoadGenerator(Server(url, "m", **options), max_concurrency)
            return await generator.run([request] * len(times), times)

    return asyncio.run(main())


def test_a_good_stream_is_counted_by_the_servers_usage():
    (timeline,) = load(streamed(*GOOD, pause_s=0.01))
    assert timeline.error == ""
    assert (timeline.prompt_tokens, timeline.output_tokens, len(timeline.chunks)) == (3, 4, 4)
    times = [timeline.intended, timeline.sent, *timeline.chunks, timeline.ended]
    assert times == sorted(times)
    assert min(timeline.gaps_s()) > 0.005


def test_every_way_to_cut_a_stream_gives_the_same_timeline():
    async def main():
        stream = b": ping\r\n\r\n" + b"".join(GOOD).replace(b"\n", b"\r\n")
        for cut in range(len(stream)):
            timeline = Timeline(0.0, 4)
            answer = Answer(timeline, streamed=True)
            answer.begin(200)
            answer.feed(stream[:cut], 1.0)
            answer.feed(stream[cut:], 2.0)
            answer.end(3.0)
            assert answer.done.done()
            assert (timeline.error, timeline.output_tokens, len(timeline.chunks)) == ("", 4, 4)

    asyncio.run(main())


@pytest.mark.parametrize(
    "events",
    [
        (text("a"), text("b", "length"), usage(3, 2)),  # no end of the stream, but a finish reason
        (event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}), text("a"), text("b", "stop"), DONE),
        (event({"choices": [{"delta": {"reasoning": "a"}}]}), event({"choices": [{"delta": {"content": "b"}}]}), DONE),
        (event({"choices": None}), b"event: x\ndata:" + text("a")[6:], text("b"), DONE),
    ],
)  # fmt: skip
def test_responses_of_other_servers_are_understood(events):
    (timeline,) = load(streamed(*events))
    assert (timeline.error, len(timeline.chunks)) == ("", 2)


def test_tokens_that_have_no_text_still_end_a_request():
    (timeline,) = load(streamed(text("", "length"), usage(3, 4), DONE))
    assert (timeline.error, timeline.num_tokens, len(timeline.chunks)) == ("", 4, 1)


def test_without_usage_chunks_are_counted_and_the_table_notes_it():
    timelines = load(streamed(*GOOD[:4], DONE))
    result = LoadResult.of(timelines, {})
    assert result.output_tokens == 4
    assert any("each chunk was counted as a token" in note for note in notes(result, 0))


def test_a_whole_answer_has_an_end_and_no_first_token():
    body = {
        "choices": [{"text": "abcd", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    (timeline,) = load(whole(200, body), streamed=False)
    assert (timeline.error, timeline.output_tokens, timeline.first_token_s) == ("", 4, None)
    assert timeline.end_to_end_s > 0


def test_an_answer_without_a_length_ends_with_its_connection():
    (timeline,) = load(raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(GOOD)))
    assert (timeline.error, timeline.output_tokens) == ("", 4)


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (whole(429, {"error": {"message": "too much"}}), "HTTP 429", "too much"),
        (whole(500, "oh"), "HTTP 500", '"oh"'),
        (raw(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"), "HTTP 503", ""),
        (streamed(text("a"), event({"error": {"message": "it broke"}}), DONE), "error in the stream", "it broke"),
        (streamed(text("a")), "cut short", "before its final event"),
        (streamed(text("a"), event(b"{")), "no OpenAI answer", "truncated"),
        (raw(HEAD + chunked(text("a"))), "connection lost", "closed by the server"),
        (raw(b""), "connection lost", "closed by the server"),
        (raw(b"SSH-2.0-OpenSSH\r\n"), "no HTTP", ""),
        (silence, "timeout", "within 0.2 s"),
    ],
)
def test_failures_are_counted_by_kind_with_an_example(answer, kind, detail):
    timelines = load(answer, times=(0.0, 0.01), timeout_s=0.2 if answer is silence else 60)
    result = LoadResult.of(timelines, {})
    assert (result.num_requests, result.num_answered, result.errors) == (2, 0, {kind: 2})
    assert detail in result.error_details[kind]
    assert result.end_to_end_ms is None
    assert any(note.startswith(f"FAILED 2 of 2, {kind}") for note in notes(result, 0))


def test_a_refused_connection_is_a_failure_like_others():
    async def main():
        async with server_of(silence) as (url, _):
            pass
        return await LoadGenerator(Server(url, "m")).run([REQUEST], [0.0])

    (timeline,) = asyncio.run(main())
    assert timeline.error == "no connection"


def test_a_slow_server_cannot_hide_the_wait_of_later_requests():
    """One slot, 60 ms per request, one request every 20 ms: the k-th takes 40 k + 60 ms from its scheduled time."""

    async def slow(body, writer):
        await asyncio.sleep(0.06)
        await streamed(*GOOD)(body, writer)

    timelines = load(slow, times=[0.02 * index for index in range(6)], max_concurrency=1)
    for index, timeline in enumerate(timelines):
        assert timeline.first_token_s >= 0.04 * index + 0.06 - 0.002
    assert LoadResult.of(timelines, {}).send_lag_ms.max >= 40 * 5 - 2


def test_a_closed_loop_measures_from_the_free_slot():
    timelines = load(streamed(*GOOD, pause_s=0.01), times=[0.0] * 5, max_concurrency=1)
    assert all(timeline.intended == timeline.sent for timeline in timelines)
    sent = [timeline.sent for timeline in timelines]
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(sent))


def test_concurrency_is_bounded_and_connections_are_reused():
    out, most, connections, full = 0, 0, set(), asyncio.Event()

    async def count(body, writer):
        nonlocal out, most
        out, most = out + 1, max(most, out + 1)
        connections.add(writer.get_extra_info("peername"))
        if out == 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)
        out -= 1
        await streamed(*GOOD)(body, writer)

    timelines = load(count, times=[0.0] * 20, max_concurrency=4)
    assert [timeline.error for timeline in timelines] == [""] * 20
    assert most == 4
    assert len(connections) == 4


def test_requests_are_what_an_openai_server_expects():
    chat = LoadRequest([{"role": "user", "content": "hi"}], 7)

    async def main():
        async with server_of(streamed(*GOOD)) as (url, asked):
            server = Server(f"{url}/root", "m", api_key="secret")
            await LoadGenerator(server).run([REQUEST], [0.0])
            await LoadGenerator(Server(url, "m", streamed=False, ignore_eos=False)).run([chat], [0.0])
            return asked

    (path, headers, body), (chat_path, chat_headers, chat_body) = asyncio.run(main())
    assert (path, chat_path) == ("/root/v1/completions", "/v1/chat/completions")
    assert headers["authorization"] == "bearer secret"
    assert "authorization" not in chat_headers
    assert body == {
        "model": "m", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip
    assert chat_body == {
        "model": "m", "messages": chat.prompt, "max_tokens": 7, "temperature": 0.0, "stream": False
    }  # fmt: skip


def test_requests_are_sent_on_time_and_never_early():
    began = time.perf_counter()
    timelines = load(streamed(*GOOD), times=[0.0, 0.05, 0.1])
    assert [round(t.intended - timelines[0].intended, 6) for t in timelines] == [0.0, 0.05, 0.1]
    assert all(timeline.sent >= timeline.intended > began for timeline in timelines)

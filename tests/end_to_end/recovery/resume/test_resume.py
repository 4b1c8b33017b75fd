"""Broken streams and killed frontends: in the end a client has the answer, byte for byte."""

import contextlib
import http.client
import json
import re
import signal
import time
from collections.abc import Iterator

import openai
import psutil
import pytest

from ...serving import Server

COMPLETION, CHAT, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/messages"
RESPONSES = "/v1/responses"
STORY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.8, "seed": 7}
QUESTION = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ENDS = re.compile(rb'data: (\[DONE\]|{"type":"(message_stop|response.completed)".*)\n\n$')
CASES = {
    "completion": (COMPLETION, STORY),
    "two choices with logprobs": (COMPLETION, {**STORY, "n": 2, "logprobs": 2}),
    "prompts, echo and usage": (
        COMPLETION,
        {
            **STORY,
            "prompt": ["Once", "The capital of France is"],
            "echo": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "stop string across tokens": (COMPLETION, {**STORY, "max_tokens": 64, "n": 2, "stop": ["the", ". "]}),
    "token ids": (COMPLETION, {**STORY, "return_token_ids": True, "ignore_eos": True}),
    "chat": (CHAT, {**QUESTION, "max_tokens": 24, "stream_options": {"include_usage": True}}),
    "chat with logprobs": (CHAT, {**QUESTION, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}),
    "chat with tool calls": (CHAT, {**QUESTION, "tools": [WEATHER]}),
    "response with tool calls": (
        RESPONSES,
        {
            "input": QUESTION["messages"],
            "temperature": 0,
            "tools": [{"type": "function", **WEATHER["function"]}],
        },
    ),
    "message with tool calls": (
        MESSAGES,
        {
            **QUESTION,
            "max_tokens": 60,
            "tools": [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}],
        },
    ),
}


def ask(server: Server, method: str, path: str, body: dict | None = None, **headers: str) -> http.client.HTTPResponse:
    """Headers are keywords with `_` for `-`. Closing the response breaks the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json", "Connection": "close", **named})
    response = connection.getresponse()
    connection.close()  # only the response holds the socket now
    return response


def events_of(response: http.client.HTTPResponse) -> Iterator[tuple[str, bytes]]:
    """Yield (id, bytes) of the events as they arrive."""
    lines: list[bytes] = []
    for line in response:
        lines.append(line)
        if line == b"\n":
            yield lines[0].decode().removeprefix("id: ").strip(), b"".join(lines)
            lines = []


def first_events(response: http.client.HTTPResponse, count: int) -> list[tuple[str, bytes]]:
    """Read `count` events and break the connection."""
    with response:
        assert response.status == 200, response.read()
        events = events_of(response)
        return [next(events) for _ in range(count)]


def whole(response: http.client.HTTPResponse) -> bytes:
    with response:
        body = response.read()
        assert response.status in (200, 204), body
        return body


def content(stream: bytes) -> dict[int, tuple[str, str | None]]:
    """The joined text and tool calls of each choice, and its finish reason."""
    if b"event: message_start" in stream:
        return {0: _of_message_events(stream)}
    if b"event: response.created" in stream:
        return {0: _of_response_events(stream)}
    found: dict[int, tuple[str, str | None]] = {}
    for line in stream.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                delta = choice.get("delta", choice)
                text = (delta.get("text") or delta.get("content") or "") + _calls(delta)
                before = found.get(choice["index"], ("", None))
                found[choice["index"]] = before[0] + text, choice["finish_reason"] or before[1]
    return found


def _of_message_events(stream: bytes) -> tuple[str, str]:
    """The same for Anthropic's events, with each block's content in its whole form."""
    events = [json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == {"type": "message_stop"}
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    names = [event["content_block"].get("name", "") for event in events if event["type"] == "content_block_start"]
    texts = [delta.get("text", delta.get("partial_json", "")) for delta in deltas]
    return "".join([*names, *texts]), events[-2]["delta"]["stop_reason"]


def _of_response_events(stream: bytes) -> tuple[str, str]:
    events = [json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: ")]
    names = [event["item"].get("name", "") for event in events if event["type"] == "response.output_item.added"]
    deltas = [event["delta"] for event in events if event["type"].endswith(".delta")]
    return "".join([*names, *deltas]), events[-1]["response"]["status"]


def _calls(message: dict) -> str:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return "".join(function.get("name", "") + function["arguments"] for function in functions)


def answer_of(server: Server, path: str, body: dict) -> dict[int, tuple[str, str | None]]:
    """The same for an answer without a key, not streamed."""
    plain = {name: value for name, value in body.items() if name != "stream_options"}
    status, answer = server.post(path, plain)
    assert status == 200, answer
    if path == MESSAGES:
        blocks = [block.get("text") or json.dumps(block["input"]) for block in answer["content"]]
        names = [block.get("name", "") for block in answer["content"]]
        return {0: ("".join([*names, *blocks]), answer["stop_reason"])}
    if path == RESPONSES:
        texts = [item.get("name", "") + item.get("arguments", "") for item in answer["output"]]
        return {0: ("".join(texts), answer["status"])}
    return {
        choice["index"]: (
            choice["text"] if "text" in choice else (choice["message"]["content"] or "") + _calls(choice["message"]),
            choice["finish_reason"],
        )
        for choice in answer["choices"]
    }


def non_ascii_case(server: Server) -> tuple[str, dict]:
    """Only tokens that are parts of these characters are allowed: most events have no text, some have one character."""
    _, tokens = server.post("/tokenize", {"prompt": "é日本語🙂", "add_special_tokens": False})
    return COMPLETION, {**STORY, "allowed_token_ids": sorted(set(tokens["tokens"])), "temperature": 1.0}


@pytest.mark.parametrize("name", [*CASES, "non-ASCII text"])
def test_a_broken_stream_resumes_by_get_and_by_post_with_the_same_bytes(server, name):
    path, body = CASES[name] if name in CASES else non_ascii_case(server)
    streamed = {**body, "stream": True}
    undisturbed = whole(ask(server, "POST", path, streamed, Idempotency_Key=name.replace(" ", "-")))
    count = undisturbed.count(b"\n\n")
    assert content(undisturbed) == answer_of(server, path, body)
    for cut in sorted({1, 2, count // 2, count - 2, count - 1}):
        key = f"{name.replace(' ', '-')}-{cut}"
        begun = first_events(ask(server, "POST", path, streamed, Idempotency_Key=key), cut)
        last, had = begun[-1][0], b"".join(event for _, event in begun)
        stream = f"/v1/streams/{last.partition(':')[0]}"
        by_get = had + whole(ask(server, "GET", stream, Last_Event_ID=last))
        kept = whole(ask(server, "POST", path, streamed, Idempotency_Key=key, Last_Event_ID=last))
        assert ask(server, "DELETE", stream).status == 204
        made_again = whole(ask(server, "POST", path, streamed, Idempotency_Key=key, Last_Event_ID=last))
        assert by_get == had + kept == had + made_again
        assert content(by_get) == content(undisturbed)
        assert ENDS.search(by_get)


@pytest.mark.parametrize("name", ["two choices with logprobs", "chat with tool calls", "message with tool calls"])
def test_a_repeated_request_recovers_everything_that_a_killed_frontend_lost(server, name):
    path, body = CASES[name]
    streamed, key = {**body, "stream": True}, f"killed-{name.replace(' ', '-')}"
    begun = first_events(ask(server, "POST", path, streamed, Idempotency_Key=key), 2)
    [frontend] = server.children("frontend.http.server")
    with contextlib.suppress(psutil.NoSuchProcess):
        frontend.send_signal(signal.SIGKILL)
        frontend.wait(60)
    last = begun[-1][0]
    assert ask_until_ready(server, "GET", f"/v1/streams/{last.partition(':')[0]}", Last_Event_ID=last).status == 404
    rest = whole(ask(server, "POST", path, streamed, Idempotency_Key=key, Last_Event_ID=last))
    from_the_first = f"{last.partition(':')[0]}:0"
    again = whole(ask(server, "POST", path, streamed, Idempotency_Key=key, Last_Event_ID=from_the_first))
    assert b"".join(event for _, event in begun) + rest == again
    assert content(again) == answer_of(server, path, body)


def ask_until_ready(server: Server, *request: str, **headers: str) -> http.client.HTTPResponse:
    """Send a request, retrying after each 503 as clients do."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if (response := ask(server, *request, **headers)).status != 503:
                return response
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_request_without_streaming_is_answered_once(server):
    first = whole(ask(server, "POST", COMPLETION, STORY, Idempotency_Key="once"))
    assert whole(ask(server, "POST", COMPLETION, STORY, Idempotency_Key="once")) == first
    assert json.loads(first)["choices"][0]["text"] == answer_of(server, COMPLETION, STORY)[0][0]
    other = whole(ask(server, "POST", COMPLETION, {**STORY, "n": 1}, Idempotency_Key="another"))
    assert json.loads(other)["id"] != json.loads(first)["id"]


def test_deleting_a_stream_frees_its_rows(server):
    begun = first_events(
        ask(server, "POST", COMPLETION, {**STORY, "max_tokens": 2000, "ignore_eos": True, "stream": True},
            Idempotency_Key="long"),
        1,
    )  # fmt: skip
    stream = f"/v1/streams/{begun[0][0].partition(':')[0]}"
    assert ask(server, "DELETE", stream).status == 204
    deadline = time.monotonic() + 60
    while "paged:num_requests_running{" not in (text := server.metrics()) or not _is_idle(text):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ask(server, "GET", stream).status == 410


def _is_idle(metrics: str) -> bool:
    [line] = [line for line in metrics.splitlines() if line.startswith("paged:num_requests_running{")]
    return float(line.split()[-1]) == 0


def test_the_official_client_reads_numbered_events(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = client.completions.create(
            model="demo",
            prompt=STORY["prompt"],
            max_tokens=STORY["max_tokens"],
            temperature=0.8,
            seed=7,
            stream=True,
            extra_headers={"Idempotency-Key": "official"},
        )
        text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == answer_of(server, COMPLETION, STORY)[0][0]

"""Shared by the tests of Anthropic's API: requests, and the message made of a stream's events."""

import json

import msgspec

from ...http_server import Server

ASK = {"model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "sum", "description": "adds", "input_schema": {"type": "object", "properties": {"a": {}}}}
CALL = '<tool_call>\n{"name": "sum", "arguments": {"a": 1,  "b": "é"}}\n</tool_call>'


def roomy(server: Server) -> Server:
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=1024)
    return server


def message(server: Server, **fields: object) -> dict:
    return server.good("/v1/messages", ASK | fields)


def refusal(server: Server, path: str = "/v1/messages", /, **fields: object) -> dict:
    answer = server.ask("POST", path, {**ASK, **fields})
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    return body["error"]


def prompt(server: Server) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)


def events_of(text: str) -> list[dict]:
    """The events of a stream; every frame names its event twice."""
    found = []
    for frame in text.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in frame.splitlines())
        found.append(json.loads(lines["data"]))
        assert lines["event"] == found[-1]["type"]
    return found


def stream(server: Server, **fields: object) -> list[dict]:
    answer = server.ask("POST", "/v1/messages", {**ASK, **fields, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


def collected(events: list[dict]) -> dict:
    """The message that clients make of a stream's events."""
    message: dict = {}
    buffers: list[str] = []
    for event in events:
        match event:
            case {"type": "message_start", "message": begun}:
                message = begun
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block)
                buffers.append("")
            case {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}:
                assert index == len(message["content"]) - 1
                if kind == "signature_delta":
                    assert message["content"][index]["signature"] == ""
                    message["content"][index] |= delta
                else:
                    buffers[index] += delta[
                        {"text_delta": "text", "thinking_delta": "thinking"}.get(kind, "partial_json")
                    ]
            case {"type": "content_block_stop", "index": index}:
                block = message["content"][index]
                field = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
                block[field] = json.loads(buffers[index] or "{}") if field == "input" else buffers[index]
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= {**delta, "usage": usage}
    assert events[-1] == {"type": "message_stop"}
    return message

"""A server over a fake engine that stores no responses, and a client that checks the form of its answers."""

import functools
import json
from pathlib import Path

import msgspec
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ...http_server import Server, make_model_folder

PATH = "/v1/responses"
TEMPLATE = (
    "{# calls are <tool_call>, reasoning is <think></think> #}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}{{ c.function.arguments | tojson }}]{% endfor %}"
    "{% endfor %}"
    "<assistant>{{ reasoning_effort }}"
)
OUTPUT = '<think>\nHm.\n</think>\n\nIt is <tool_call>{"name": "add", "arguments": {"a": [2, 2]}}</tool_call>'
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": None}


@functools.cache
def event_form() -> TypeAdapter[ResponseStreamEvent]:
    """Takes a third of a second to make."""
    return TypeAdapter(ResponseStreamEvent)


def response_server(tmp_path: Path, output: str = OUTPUT, template: str = TEMPLATE, **more) -> Server:
    (tmp_path / "t.jinja").write_text(template)
    folder = make_model_folder(tmp_path / "model")
    server = Server(folder, output, {"chat_template": str(tmp_path / "t.jinja")}, **more)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=512)
    return server


def respond(server: Server, given: object = "hi", **fields) -> dict:
    answer = server.good(PATH, {"input": given, **fields})
    Response.model_validate(answer, strict=True)
    return answer


def stream(server: Server, **fields) -> list[dict]:
    """The events of a stream, as parsed by the official client."""
    answer = server.ask("POST", PATH, {"input": "hi", "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    found = []
    for frame in answer.text.split("\n\n")[:-1]:
        kind, data = (line.split(": ", 1)[1] for line in frame.splitlines())
        found.append(json.loads(data))
        assert found[-1]["type"] == kind
        event_form().validate_python(found[-1])
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    return found


def prompt(server: Server) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)


def refusal(server: Server, **fields) -> dict:
    answer = server.ask("POST", PATH, {"input": "hi", **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]

"""The Responses API of the official `openai` client against a real server: the most common calls."""

from typing import Literal

import openai
import pydantic
import pytest

QUESTION = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response_whole_and_streamed(client):
    options = {"model": "demo", "input": QUESTION, "temperature": 0, "max_output_tokens": 40}
    answer = client.responses.create(**options)
    assert "Paris" in answer.output_text
    assert answer.status == "completed"
    assert client.responses.input_tokens.count(model="demo", input=QUESTION).input_tokens == answer.usage.input_tokens
    with client.responses.stream(**options) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == answer.output_text
    assert final.usage.output_tokens == answer.usage.output_tokens > 3
    chat = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=40
    )
    assert chat.choices[0].message.content == answer.output_text


def test_calls_are_continued_over_turns_with_the_clients_own_objects(client):
    options = {"model": "demo", "tools": [WEATHER], "temperature": 0}
    answer = client.responses.create(input=ASKED, tool_choice="required", **options)
    [call] = answer.output
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", '{"city": "Paris"}')
    with client.responses.stream(input=ASKED, tool_choice="required", **options) as stream:
        assert stream.get_final_response().output[0].arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees, sunny"}
    last = client.responses.create(input=[*ASKED, *answer.output, result], **options)
    assert "18" in last.output_text
    refused = [*ASKED, {**result, "call_id": "other"}]
    with pytest.raises(openai.BadRequestError, match="no function_call before it"):
        client.responses.create(input=refused, **options)


def test_a_custom_tool_is_called_with_a_text(client):
    tool = {"type": "custom", "name": "search", "description": "Searches the web"}
    options = {"model": "demo", "tools": [tool], "temperature": 0, "input": ASKED}
    forced = {"tool_choice": {"type": "custom", "name": "search"}, "max_output_tokens": 100}
    [call] = client.responses.create(**forced, **options).output
    assert (call.type, call.name) == ("custom_tool_call", "search")
    with client.responses.stream(**forced, **options) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.custom_tool_call_input.delta")
        assert text == stream.get_final_response().output[0].input == call.input
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "18 degrees, sunny"}
    assert client.responses.create(**{**options, "input": [*ASKED, call, result]}).output_text


class City(pydantic.BaseModel):
    name: str
    kind: Literal["town", "village"]


def test_an_answer_is_parsed_into_its_type(client):
    answer = client.responses.parse(model="demo", input="Name a city.", text_format=City, max_output_tokens=200)
    assert isinstance(answer.output_parsed, City)

"""The official `anthropic` client against a real server: the most common calls."""

import importlib
from typing import Literal

import pydantic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
OPTIONS = {"model": "demo", "max_tokens": 60, "extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def anthropic():
    """Imported where it is used: it takes two seconds of a core, which each of pytest's processes would spend."""
    return importlib.import_module("anthropic")


@pytest.fixture
def client(server, anthropic):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_whole_and_streamed(client):
    answer = client.messages.create(messages=QUESTION, **OPTIONS)
    [block] = answer.content
    assert "Paris" in block.text
    assert answer.stop_reason == "end_turn"
    assert answer._request_id == answer.id.removeprefix("msg_")
    with client.messages.stream(messages=QUESTION, **OPTIONS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == block.text
    assert final.stop_reason == "end_turn"
    read = final.usage.input_tokens + final.usage.cache_read_input_tokens
    counted = client.messages.count_tokens(model="demo", messages=QUESTION)
    assert read == answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted.input_tokens
    assert final.usage.output_tokens == answer.usage.output_tokens > 3


def test_a_tool_call_and_its_result_round_trip_with_the_clients_own_objects(client):
    answer = client.messages.create(messages=ASKED, tools=[WEATHER], **OPTIONS)
    assert answer.stop_reason == "tool_use"
    [call] = answer.content
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    with client.messages.stream(messages=ASKED, tools=[WEATHER], **OPTIONS) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees, sunny"}
    history = [*ASKED, answer.to_param(), {"role": "user", "content": [result]}]
    last = client.messages.create(messages=history, tools=[WEATHER], **OPTIONS)
    assert "18 degrees" in last.content[0].text


@pytest.mark.parametrize("chosen", [{"type": "tool", "name": "get_weather"}, {"type": "any"}])
def test_a_forced_tool_is_called(client, chosen):
    answer = client.messages.create(messages=QUESTION, tools=[WEATHER], tool_choice=chosen, **OPTIONS)
    assert answer.stop_reason == "tool_use"
    assert [(call.type, call.name) for call in answer.content] == [("tool_use", "get_weather")]
    assert isinstance(answer.content[0].input["city"], str)


def test_the_clients_tool_runner_runs_a_tool_and_gets_the_answer(client, anthropic):
    """It first asks the server to keep the conversation, and then sends all of it."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"18 degrees, sunny in {city}"

    runner = client.beta.messages.tool_runner(messages=ASKED, tools=[get_weather], **OPTIONS)
    called, last = runner
    assert (called.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
    assert "18 degrees" in last.content[0].text


class Weather(pydantic.BaseModel):
    place: Literal["Paris", "Rome"]
    degrees: int


def test_the_client_parses_answers_into_its_users_types(client):
    parsed = client.messages.parse(
        model="demo", messages=ASKED, output_format=Weather, max_tokens=200, extra_body={"temperature": 1}
    )
    assert isinstance(parsed.parsed_output, Weather)


def test_a_conversation_in_the_form_of_claude_code_is_answered(client):
    """Claude Code's fields, blocks and roles, over several turns."""
    cached = {"type": "ephemeral"}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"}],
        },
        {"role": "system", "content": "Answer briefly."},
    ]
    for turn in range(20):
        messages.append({"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": cached}]})
        with client.beta.messages.stream(
            model="demo",
            max_tokens=32000,
            system=[
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={turn}"},
                {"type": "text", "text": "You are a helpful assistant.", "cache_control": cached},
            ],
            messages=messages,
            tools=[{**WEATHER, "cache_control": cached, "eager_input_streaming": True}],
            tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            thinking={"type": "enabled", "budget_tokens": 31999},
            metadata={"user_id": "user_1"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        ) as stream:
            answer = stream.get_final_message()
        assert answer.stop_reason == "tool_use"
        [call] = [block for block in answer.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
        messages += [answer.to_param(), {"role": "user", "content": [{**result, "is_error": turn % 5 == 2}]}]


def test_the_models_list_names_the_demo_model(client):
    [model] = client.models.list()
    assert (model.id, model.max_input_tokens, model.created_at.year > 2000) == ("demo", 2048, True)
    assert client.models.retrieve("demo") == model


def test_errors_are_the_clients_own(client, anthropic):
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(messages=QUESTION, **{**OPTIONS, "model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="is not a known field"):
        client.messages.create(messages=QUESTION, **{**OPTIONS, "extra_body": {"temprature": 1}})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(messages=[{"role": "user", "content": "word " * 3000}], **OPTIONS)

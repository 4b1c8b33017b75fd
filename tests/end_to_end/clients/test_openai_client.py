"""The official `openai` client against a real server: the most common calls."""

import asyncio
import re
import time
from typing import Literal

import openai
import pydantic
import pytest

PROMPTS = [f"The capital of {country} is" for country in ("France", "Japan", "Italy", "Peru", "Kenya", "Norway")]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_sixty_four_concurrent_streams_equal_their_answers_alone(server, client):
    alone = {
        prompt: client.completions.create(model="demo", prompt=prompt, max_tokens=32, temperature=0).choices[0].text
        for prompt in PROMPTS
    }

    async def stream(async_client: openai.AsyncOpenAI, prompt: str) -> str:
        chunks = await async_client.completions.create(
            model="demo", prompt=prompt, max_tokens=32, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def all_streams() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as async_client:
            return await asyncio.gather(*(stream(async_client, PROMPTS[i % len(PROMPTS)]) for i in range(64)))

    assert asyncio.run(all_streams()) == [alone[PROMPTS[i % len(PROMPTS)]] for i in range(64)]


def test_the_demo_model_answers_a_chat_and_reports_its_usage(client):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    streamed = client.chat.completions.create(
        model="demo",
        messages=messages,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(streamed)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens


def test_seeded_sampling_is_reproducible_and_its_sequences_differ(client):
    def sample() -> list[str]:
        answer = client.completions.create(model="demo", prompt="Once", max_tokens=24, temperature=1.0, seed=7, n=4)
        return [choice.text for choice in answer.choices]

    first = sample()
    assert first == sample()
    assert len(set(first)) > 1


def test_logprobs_have_both_forms(client):
    completion = client.completions.create(model="demo", prompt=PROMPTS[0], max_tokens=4, temperature=0, logprobs=3)
    logprobs = completion.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 4
    assert all(value <= 0 for value in logprobs.token_logprobs)

    chat = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    content = chat.choices[0].logprobs.content
    assert all(len(token.top_logprobs) == 2 for token in content)
    assert all(token.top_logprobs[0].token == token.token for token in content)


def test_a_stop_string_is_cut_and_named(client):
    whole = client.completions.create(model="demo", prompt=PROMPTS[0], max_tokens=16, temperature=0).choices[0].text
    stop = whole[2:5]
    cut = client.completions.create(model="demo", prompt=PROMPTS[0], max_tokens=16, temperature=0, stop=[stop])
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_the_models_list_names_the_demo_model(client):
    assert [model.id for model in client.models.list()] == ["demo"]


WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def test_a_tool_call_and_its_result_round_trip_with_the_clients_own_objects(client):
    tools = [{"type": "function", "function": WEATHER}]
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"model": "demo", "tools": tools, "temperature": 0, "max_tokens": 60}
    answer = client.chat.completions.create(messages=messages, **options).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')

    with client.chat.completions.stream(messages=messages, **options) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments

    history = [*messages, answer.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"}]
    assert "18 degrees" in client.chat.completions.create(messages=history, **options).choices[0].message.content


class Weather(pydantic.BaseModel):
    place: Literal["Paris", "Rome"]
    degrees: int


def test_the_client_parses_answers_and_strict_tools_into_its_users_types(client):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = client.chat.completions.parse(
        model="demo", messages=messages, response_format=Weather, temperature=1, seed=1, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)
    tool = openai.pydantic_function_tool(Weather, name="report")
    forced = {"type": "function", "function": {"name": "report"}}
    called = client.chat.completions.parse(
        model="demo", messages=messages, tools=[tool], tool_choice=forced, temperature=0, max_tokens=200
    )
    [call] = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(
        model="demo", messages=messages, response_format=Weather, temperature=1, seed=1, max_tokens=200
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


def test_a_custom_tool_is_called_with_a_text_of_its_form(client):
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]{3} -- [0-9]{2}\n"}}
    options = {
        "model": "demo",
        "tools": [{"type": "custom", "custom": {"name": "sql", "format": grammar}}],
        "temperature": 1.5,
        "seed": 3,
    }
    asked = {"role": "user", "content": "What is the weather in Paris?"}
    chosen = {"type": "custom", "custom": {"name": "sql"}}
    answer = client.chat.completions.create(messages=[asked], tool_choice=chosen, **options).choices[0].message
    [call] = answer.tool_calls
    assert re.fullmatch("[a-z]{3} -- [0-9]{2}\n", call.custom.input)
    with client.chat.completions.create(messages=[asked], tool_choice=chosen, stream=True, **options) as stream:
        deltas = [delta for chunk in stream for delta in chunk.choices[0].delta.tool_calls or []]
    assert "".join(delta.model_dump()["custom"]["input"] for delta in deltas) == call.custom.input
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"}
    last = client.chat.completions.create(messages=[asked, answer, result], tool_choice="none", **options)
    assert last.choices[0].message.content


def test_the_raw_response_carries_the_request_id(client):
    raw = client.completions.with_raw_response.create(
        model="demo", prompt="a", max_tokens=2, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.request_id == "mine-1"
    assert raw.parse().id == "cmpl-mine-1"


def test_logprobs_of_named_tokens_equal_those_of_the_top_tokens(client):
    by_id = {"return_tokens_as_token_ids": True}
    asked = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}
    whole = client.completions.create(**asked, logprobs=20, extra_body=by_id).choices[0].logprobs.top_logprobs
    names = [*whole[0]][4:1:-1]
    named = {"logprob_token_ids": [int(name.removeprefix("token_id:")) for name in names]}
    found = client.completions.create(**asked, extra_body=by_id | named).choices[0].logprobs
    assert found.top_logprobs[0] == {name: whole[0][name] for name in [found.tokens[0], *names]}
    assert client.completions.create(**asked, logprobs=1, extra_body=by_id | named).choices[0].logprobs == found
    talk = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
    best = client.chat.completions.create(**talk, logprobs=True, top_logprobs=20, extra_body=by_id).choices[0].logprobs
    likely = best.content[0].top_logprobs[5:8]
    named = {"logprob_token_ids": [int(entry.token.removeprefix("token_id:")) for entry in likely]}
    chosen = client.chat.completions.create(**talk, extra_body=by_id | named).choices[0].logprobs
    assert chosen.content[0].top_logprobs == likely
    given = client.chat.completions.create(**talk, logprobs=True, top_logprobs=2, extra_body=by_id | named)
    assert given.choices[0].logprobs == chosen
    with pytest.raises(openai.BadRequestError, match="logprobs is false; set it to true"):
        client.chat.completions.create(**talk, logprobs=False, extra_body=named)
    with pytest.raises(openai.BadRequestError, match="logprob_token_ids names token 5000"):
        client.completions.create(**asked, extra_body={"logprob_token_ids": [5000]})


def test_a_logit_bias_applies_without_a_seed(client):
    answer = client.completions.create(
        model="demo", prompt="a", max_tokens=3, logit_bias={"50": 100}, extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].token_ids == [50, 50, 50]


def test_a_client_timeout_frees_the_engine(server, client):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(
            model="demo", prompt="a", max_tokens=1900, extra_body={"ignore_eos": True}
        )
    deadline = time.monotonic() + 60
    while 'paged:num_requests_running{engine="0",model_name="demo"} 0.0' not in server.metrics():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_continue_final_message_continues_an_answer(client):
    question = {"role": "user", "content": "What is the capital of France?"}

    def answer(messages: list, **extra) -> str:
        asked = client.chat.completions.create(model="demo", messages=messages, temperature=0, extra_body=extra)
        return asked.choices[0].message.content

    whole = answer([question])
    begin = " ".join(whole.split(" ")[:2])
    begun = {"role": "assistant", "content": begin}
    rest = answer([question, begun], continue_final_message=True, add_generation_prompt=False)
    assert begin + rest == whole


def test_an_output_that_repeats_itself_ends(client):
    """One token is by far the most likely, so that the output repeats it."""
    fields = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 32, "logit_bias": {"50": 100}}
    detection = {"max_pattern_size": 4, "min_count": 5}
    free = client.completions.create(**fields, temperature=0)
    assert (free.usage.completion_tokens, free.choices[0].finish_reason) == (32, "length")
    for stream in (False, True):
        answer = client.completions.create(
            **fields, temperature=0, stream=stream, extra_body={"repetition_detection": detection}
        )
        choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
        assert choices[-1].finish_reason == "repetition"
        text = "".join(choice.text for choice in choices)
        assert text * 32 == free.choices[0].text * 5


def test_a_prompt_is_computed_again_on_request(client):
    fields = {"model": "demo", "prompt": "The capital of France is " * 20, "max_tokens": 1, "temperature": 0}
    cached = []
    for skip in (False, False, True):
        answer = client.completions.create(**fields, extra_body={"skip_reading_prefix_cache": skip})
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[1] > 0
    assert cached[2] == 0

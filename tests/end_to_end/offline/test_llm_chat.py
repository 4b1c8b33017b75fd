"""LLM with the demo model: tool calls, structured outputs, beams, queues; equal to HTTP's and AsyncLLM's answers."""

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

import jsonschema_rs
import pytest

from paged_serve import (
    LLM,
    AsyncLLM,
    BeamSearchParams,
    EngineDead,
    InvalidRequest,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)

from ..answers.test_structured_outputs import CITY
from .test_async_llm import LONG_RUN, all_outputs

OPTIONS = {"max_num_seqs": 8, "num_blocks": 256, "threads": 1}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
GREEDY = SamplingParams(max_tokens=60, temperature=0)
WILD = SamplingParams(max_tokens=60, temperature=1.5, seed=4, n=3)


MIXED = [
    SamplingParams(max_tokens=24, temperature=0),
    SamplingParams(max_tokens=24, temperature=1.0, seed=7, logprobs=2),
    SamplingParams(max_tokens=16, temperature=1.0, seed=3, n=2),
    SamplingParams(max_tokens=24, temperature=0, stop=["e"], prompt_logprobs=1),
]
PROMPTS = [f"{start} {number}" for number in range(8) for start in ("The sea", "A tree", "Once upon a time", "x")]
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


class ShutDown(NamedTuple):
    completions: list[RequestOutput]
    chat: RequestOutput
    calls: list[RequestOutput]  # growing
    ends: list[object]  # of requests that were running or waiting
    pids: list[int]
    run_dir: str


def contents(output):
    sequences = [(s.text, s.token_ids, s.logprobs, s.finish_reason, s.stop_reason) for s in output.outputs]
    return output.prompt, output.prompt_token_ids, output.prompt_logprobs, sequences


@pytest.fixture(scope="module")
def llm():
    with LLM(**OPTIONS) as llm:
        yield llm


def test_a_tool_is_called_and_its_result_is_answered(llm):
    [asked] = llm.chat(ASKED, GREEDY, tools=[WEATHER])
    message = asked.outputs[0].message
    [call] = message["tool_calls"]
    assert (call["function"], message["content"]) == ({"name": "get_weather", "arguments": '{"city": "Paris"}'}, None)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees, sunny"}
    [answered] = llm.chat([*ASKED, message, result], GREEDY, tools=[WEATHER])
    assert "18 degrees" in answered.outputs[0].message["content"]
    assert answered.outputs[0].message.keys() == {"role", "content"}
    assert llm.generate("The sea", GREEDY)[0].outputs[0].message is None


def test_calls_can_be_forced_and_forbidden(llm):
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        [output] = llm.chat(ASKED, WILD, tools=[WEATHER], tool_choice=choice)
        for sequence in output.outputs:
            if sequence.finish_reason == "stop":
                assert all(
                    "city" in json.loads(call["function"]["arguments"]) for call in sequence.message["tool_calls"]
                )
    assert len({call["id"] for each in output.outputs for call in each.message["tool_calls"]}) >= 3
    [output] = llm.chat(ASKED, GREEDY, tools=[WEATHER], tool_choice="none")
    assert "tool_calls" not in output.outputs[0].message
    with pytest.raises(InvalidRequest, match="tools has get_weather"):
        llm.chat(ASKED, GREEDY, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "other"}})
    form = SamplingParams(structured_outputs=StructuredOutputsParams(choice=("a", "b")))
    with pytest.raises(InvalidRequest, match="cannot be combined"):
        llm.chat(ASKED, form, tools=[WEATHER], tool_choice="required")


def test_messages_are_those_of_http(llm, server):
    body = {"messages": ASKED, "tools": [WEATHER], "tool_choice": "required"}
    fields = {"max_tokens": 60, "temperature": 1.5, "seed": 4, "n": 3}
    [whole] = llm.chat(ASKED, WILD, tools=[WEATHER], tool_choice="required")
    status, answer = server.post("/v1/chat/completions", body | fields)
    assert status == 200, answer
    mine = [each.message for each in whole.outputs]
    theirs = [choice["message"] for choice in answer["choices"]]
    for message in (*mine, *theirs):
        for call in message["tool_calls"]:
            del call["id"]
    assert mine == theirs


def test_vectors_and_scores_have_the_bits_of_http(llm, server):
    texts = [f"The capital of country {number} is a city{' with a name' * (number % 7)}." for number in range(20)]
    status, answer = server.post("/v1/embeddings", {"input": texts})
    assert status == 200, answer
    vectors = [each["embedding"] for each in answer["data"]]
    assert [output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)] == vectors
    whole = llm.encode(texts[0], pooling_task="token_embed")[0].outputs.data
    assert whole.tolist()[-1] == vectors[0]
    status, answer = server.post("/score", {"text_1": texts[0], "text_2": texts[1]})
    assert llm.score(texts[0], texts[1])[0].outputs.score == answer["data"][0]["score"]


def test_an_output_of_a_form_is_that_of_http(llm, server):
    fields = {"max_tokens": 160, "seed": 3, "temperature": 1.0}
    form = {"json": CITY, "disable_any_whitespace": True}
    status, answer = server.post("/v1/completions", {"prompt": "A city: ", **fields, "structured_outputs": form})
    assert status == 200, answer
    params = SamplingParams(**fields, structured_outputs=StructuredOutputsParams(**form))
    text = llm.generate("A city: ", params)[0].outputs[0].text
    assert text == answer["choices"][0]["text"]
    assert jsonschema_rs.is_valid(CITY, json.loads(text))
    with pytest.raises(InvalidRequest, match=r"structured_outputs: .*unclosed"):
        llm.generate("x", SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")))


def test_a_beam_of_width_one_is_greedy(llm):
    prompt = "The capital of France is"
    [output] = llm.generate(prompt, SamplingParams(max_tokens=12, temperature=0, logprobs=1))
    [found] = llm.beam_search(prompt, BeamSearchParams(beam_width=1, max_tokens=12))
    [beam] = found.sequences
    assert beam.tokens[len(output.prompt_token_ids) :] == output.outputs[0].token_ids
    assert beam.cum_logprob == output.outputs[0].cumulative_logprob
    assert (beam.text, beam.finish_reason) == (prompt + output.outputs[0].text, "stop")


def test_beams_are_the_best_of_all_candidates(llm):
    prompts = ["The capital of", "The sea"]
    params = BeamSearchParams(beam_width=4, max_tokens=5, length_penalty=0.5)
    found = llm.beam_search(prompts, params)
    assert found == llm.beam_search(prompts, params)
    for prompt, output in zip(prompts, found, strict=True):
        assert [output] == llm.beam_search([prompt], params)
        scores = [beam.score(0.5) for beam in output.sequences]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(beam.tokens) for beam in output.sequences}) == 4
        for beam in output.sequences:
            generated = beam.tokens[len(beam.tokens) - len(beam.logprobs) :]
            chosen = [candidates[token].logprob for token, candidates in zip(generated, beam.logprobs, strict=True)]
            assert beam.cum_logprob == sum(chosen)
            assert beam.text.startswith(prompt)
    [greedy] = llm.beam_search("The sea", BeamSearchParams(beam_width=1, max_tokens=5, length_penalty=0.5))
    assert found[1].sequences[0].score(0.5) >= greedy.sequences[0].score(0.5)
    with pytest.raises(InvalidRequest, match="the limit of a beam search is 10, half of max_logprobs=20"):
        llm.beam_search("x", BeamSearchParams(beam_width=11, max_tokens=1))


def test_enqueued_prompts_are_completed_together(llm):
    assert llm.enqueue(["The sea", "x"], GREEDY) == ["0", "1"]
    assert llm.enqueue("Once upon a time", GREEDY) == ["2"]
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == ["0", "1", "2"]
    same = llm.generate(["The sea", "x", "Once upon a time"], GREEDY)
    assert [output.outputs for output in outputs] == [output.outputs for output in same]
    assert llm.wait_for_completion() == []


def test_enqueued_conversations_are_answered_with_the_prompts(llm):
    options = {"tools": [WEATHER], "tool_choice": "required"}
    assert llm.get_world_size() == 1
    assert llm.enqueue_chat(ASKED, WILD, use_tqdm=False, **options) == ["0"]
    assert llm.enqueue("The sea", GREEDY) == ["1"]
    assert llm.enqueue_chat([FRANCE, FRANCE], GREEDY) == ["2", "3"]
    outputs = llm.wait_for_completion(use_tqdm=False)
    same = [*llm.chat(ASKED, WILD, **options), *llm.generate("The sea", GREEDY), *llm.chat([FRANCE, FRANCE], GREEDY)]
    assert [output.outputs for output in outputs] == [output.outputs for output in same]
    with pytest.raises(InvalidRequest, match=r"tool_choce is not a keyword of this method; did you mean tool_choice\?"):
        llm.enqueue_chat(FRANCE, tool_choce="auto")


@pytest.fixture(scope="module")
def shut_down():
    """The answers of an AsyncLLM, and what was left of it when it was shut down."""

    async def run():
        async with AsyncLLM(**OPTIONS) as llm:
            asked = [llm.generate(prompt, MIXED[number % len(MIXED)]) for number, prompt in enumerate(PROMPTS)]
            *completions, chat = await asyncio.gather(*map(all_outputs, asked), all_outputs(llm.chat(FRANCE, MIXED[0])))
            calls = await all_outputs(llm.chat(ASKED, WILD, tools=[WEATHER], tool_choice="required"))
            running = [asyncio.create_task(all_outputs(llm.generate("The sea", LONG_RUN))) for _ in range(16)]
            while (metrics := await llm.get_metrics())["num_running"] < 8 or metrics["num_waiting"] < 8:
                assert not any(each.done() for each in running)
            pids, run_dir = [*llm._engine.supervisor.pids.values()], llm._engine.run_dir
        ends = await asyncio.gather(*running, return_exceptions=True)
        with pytest.raises(EngineDead, match="was shut down"):
            await llm.get_metrics()
        return ShutDown([outputs[-1] for outputs in completions], chat[-1], calls, ends, pids, run_dir)

    return asyncio.run(run())


def test_32_concurrent_requests_of_async_llm_give_the_output_of_llm(llm, shut_down):
    expected = llm.generate(PROMPTS, [MIXED[number % len(MIXED)] for number in range(len(PROMPTS))])
    assert [*map(contents, shut_down.completions)] == [*map(contents, expected)]
    assert contents(shut_down.chat) == contents(llm.chat(FRANCE, MIXED[0])[0])
    assert all(output.finished and output.metrics.decode_s >= 0 for output in shut_down.completions)


def test_growing_outputs_of_async_llm_have_a_message_once_they_are_finished(llm, shut_down):
    [whole] = llm.chat(ASKED, WILD, tools=[WEATHER], tool_choice="required")
    for output in shut_down.calls:
        for each in output.outputs:
            assert (each.message is None) != each.finished()
    mine, growing = ([each.message for each in output.outputs] for output in (whole, shut_down.calls[-1]))
    assert growing == mine


def test_shutdown_ends_every_request_with_an_error_and_leaves_nothing(shut_down):
    assert [type(end) for end in shut_down.ends] == [EngineDead] * 16
    assert not any(Path(f"/proc/{pid}").exists() for pid in shut_down.pids)
    assert not Path(shut_down.run_dir).exists()

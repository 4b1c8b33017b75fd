"""LLM with the demo model: tool calls, structured outputs, beams, queues; equal to the answers over HTTP."""

import asyncio
import json

import pytest

from paged_serve import LLM, AsyncLLM, BeamSearchParams, InvalidRequest, SamplingParams, StructuredOutputsParams

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


def test_messages_are_those_of_http_and_of_async_llm(llm, server):
    body = {"messages": ASKED, "tools": [WEATHER], "tool_choice": "required"}
    fields = {"max_tokens": 60, "temperature": 1.5, "seed": 4, "n": 3}
    [whole] = llm.chat(ASKED, WILD, tools=[WEATHER], tool_choice="required")
    status, answer = server.post("/v1/chat/completions", body | fields)
    assert status == 200, answer

    async def last():
        async with AsyncLLM(**OPTIONS) as other:
            async for output in other.chat(ASKED, WILD, tools=[WEATHER], tool_choice="required"):
                for each in output.outputs:
                    assert (each.message is None) != each.finished()
            return output

    mine, growing = ([each.message for each in output.outputs] for output in (whole, asyncio.run(last())))
    assert growing == mine
    theirs = [choice["message"] for choice in answer["choices"]]
    for message in (*mine, *theirs):
        for call in message["tool_calls"]:
            del call["id"]
    assert mine == theirs


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

"""Structured outputs after reasoning on a real server: the demo model, with its tool call tags as reasoning tags."""

import json
import random
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema_rs
import openai
import pytest

from paged_serve import LLM, SamplingParams, StructuredOutputsParams
from paged_serve.frontend.config.model_folder import demo_model_folder

from ..serving import Server, serving

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

BEGIN, END = 1022, 1023  # the tokens of the tags
BUDGET = 5  # reasoning tokens of every third request
SCHEMA = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["town", "size"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "town", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "thinking"
    shutil.copytree(demo_model_folder(), folder)
    for name in ("tokenizer.json", "chat_template.jinja"):
        text = (folder / name).read_text().replace("<tool_call>", "<think>").replace("</tool_call>", "</think>")
        (folder / name).write_text(text)
    with (folder / "chat_template.jinja").open("a") as template:
        template.write('{%- if opens %}{{ "<think>\\n" }}{% endif %}')
    return folder


def request(number: int) -> dict:
    """The prompt of every second request begins the reasoning; the others make its token likely or not."""
    rng = random.Random(number)
    body = {"messages": [{"role": "user", "content": f"Which town, {number}?"}], "max_tokens": 120, "seed": number}
    opens = number % 2 == 0
    bias = {END: 4} if opens else {END: 4, BEGIN: rng.choice([-100, 100])}
    kwargs = {"chat_template_kwargs": {"opens": True}} if opens else {}
    budget = {"thinking_token_budget": BUDGET} if number % 3 == 0 else {}
    return {**body, **kwargs, **budget, "temperature": 1.0, "logit_bias": bias, "response_format": FORM}


def ask(server: Server, number: int) -> tuple[str | None, str | None, str]:
    status, answer = server.post("/v1/chat/completions", request(number))
    assert status == 200, answer
    [choice] = answer["choices"]
    return choice["message"].get("reasoning"), choice["message"]["content"], choice["finish_reason"]


def num_tokens(server: Server, text: str) -> int:
    return int(server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["count"])


def streamed(server: Server, number: int) -> tuple[str, str]:
    reasoning, content = "", ""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        body = {"model": "thinking", **request(number)}
        kwargs = {name: body.pop(name) for name in ("chat_template_kwargs", "thinking_token_budget") if name in body}
        for chunk in client.chat.completions.create(**body, extra_body=kwargs, stream=True):
            for choice in chunk.choices:
                reasoning += getattr(choice.delta, "reasoning", None) or ""
                content += choice.delta.content or ""
    return reasoning, content


@pytest.fixture(scope="module")
def server(folder) -> Iterator[Server]:
    options = ("--served-model-name", "thinking", "--max-num-seqs", "4", "--num-blocks", "40", "--max-restarts", "9")
    with serving(str(folder), *options) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server) -> list[tuple[str | None, str | None, str]]:
    return [ask(server, number) for number in range(12)]


def test_answers_after_reasoning_keep_their_form_alone_in_a_batch_and_through_a_kill(server, alone):
    ended = [(reasoning, content) for reasoning, content, reason in alone if reason == "stop"]
    assert len(ended) > 6
    for _, content in ended:
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(content)), content
    assert sum(reasoning is not None for reasoning, _ in ended) > 2
    assert sum(reasoning is None for reasoning, _ in ended) > 0, "the first token of some is one of the form"
    lengths = [num_tokens(server, reasoning or "") for reasoning, _, _ in alone]
    assert max(lengths[::3]) == BUDGET < max(lengths)
    for number in range(2):
        reasoning, content, _ = alone[number]
        assert streamed(server, number) == (reasoning or "", content or "")
    with ThreadPoolExecutor(8) as clients:
        together = [clients.submit(ask, server, number) for number in range(12)]
        together[4].result(120)
        server.children("workers")[0].send_signal(signal.SIGKILL)
        assert [each.result(120) for each in together] == alone


@pytest.mark.nightly  # frontend/offline/test_llm_chat.py has LLM's messages
def test_llm_gives_the_same_messages(folder, alone):
    with LLM(str(folder), threads=1) as llm:
        for number, (reasoning, content, reason) in enumerate(alone[:6]):
            body = request(number)
            del body["response_format"]
            messages, kwargs = body.pop("messages"), body.pop("chat_template_kwargs", None)
            params = SamplingParams(**body, structured_outputs=StructuredOutputsParams(json=json.dumps(SCHEMA)))
            [output] = llm.chat(messages, params, chat_template_kwargs=kwargs)
            [found] = output.outputs
            message = {"role": "assistant", "content": content or ""}
            assert found.message == (message if reasoning is None else {**message, "reasoning_content": reasoning})
            assert found.finish_reason == reason

"""use_beam_search and best_of over HTTP: the choices are the best sequences, the best first."""

import asyncio
import json
import math
import random
import re

import msgspec
import pytest

from paged_serve.frontend.offline.beam_search import beam_search
from paged_serve.frontend.offline.outputs import CompletionOutput, Logprob, RequestOutput
from paged_serve.frontend.text.beam_search import BeamSearchParams
from paged_serve.protocol import errors
from paged_serve.protocol.errors import EngineDead, Overloaded

from ...fake_engine import LIMITS, FakeRequest
from ...http_server import Server, make_model_folder
from ..connections.test_http_memory import Sender

C, H = "/v1/completions", "/v1/chat/completions"
LETTERS = range(64, 72)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model_folder(tmp_path_factory.mktemp("model"))


def logprob(tokens: tuple[int, ...], token: int) -> float:
    return math.log(random.Random(f"{tokens} {token}").random() + 0.05) - 1


class TableRequest(FakeRequest):
    """A request for one token whose probabilities depend on all tokens before it."""

    def _logprobs(self, token, width):
        found = super()._logprobs(token, width)
        at = tuple(self.prompt_token_ids)
        best = sorted([*LETTERS, 256], key=lambda each: -logprob(at, each))
        found.token_ids = [best[0], *best[:width]]
        found.logprobs = [logprob(at, each) for each in found.token_ids]
        return found


@pytest.fixture
def beams(folder):
    """A server whose engine answers from the table; the model's end token is a candidate, and so is the tokenizer's."""
    server = Server(folder, ends=False, limits=msgspec.structs.replace(LIMITS, eos_token_ids=(LETTERS[0],)))
    assert server.tokenizer.token_id("<|end|>") == 256
    submit = server.engine.submit

    def submit_to_table(*args, **terms):
        request = submit(*args, **terms)
        request.__class__ = TableRequest
        return request

    server.engine.submit = submit_to_table
    return server


def expected(server: Server, prompt: str, params: BeamSearchParams):
    """The sequences that LLM finds in the same table."""

    def one_step(asked, step):
        for tokens in asked:
            best = sorted([*LETTERS, 256], key=lambda each: -logprob(tuple(tokens), each))[: step.logprobs]
            found = {token: Logprob(logprob(tuple(tokens), token)) for token in best}
            yield RequestOutput("", None, tokens, outputs=[CompletionOutput(0, "", [1], 0.0, [found])])

    steps = lambda asked, _, step: list(one_step(asked, step))  # noqa: E731
    [output] = beam_search(steps, [server.tokenizer.encode(prompt)], params, server.tokenizer, server.engine.limits)
    return output.sequences


@pytest.mark.parametrize("penalty", [None, 0.0, 2.0])
def test_the_choices_are_the_beams_that_llm_finds(beams, penalty):
    asked = {"use_beam_search": True, "n": 3, "max_tokens": 5, "length_penalty": penalty, "temperature": 0}
    answer = beams.complete(prompt="abc", logprobs=2, top_p=1, top_k=-1, presence_penalty=0, **asked)
    params = BeamSearchParams(beam_width=3, max_tokens=5, length_penalty=1.0 if penalty is None else penalty)
    found = expected(beams, "abc", params)
    assert [choice["text"] for choice in answer["choices"]] == [beam.text.removeprefix("abc") for beam in found]
    assert [choice["finish_reason"] for choice in answer["choices"]] == [beam.finish_reason for beam in found]
    for choice, beam in zip(answer["choices"], found, strict=True):
        assert sum(choice["logprobs"]["token_logprobs"]) == pytest.approx(beam.cum_logprob)
        assert {len(top) for top in choice["logprobs"]["top_logprobs"]} <= {2, 3}
    assert answer["usage"]["completion_tokens"] == sum(len(beam.tokens) - 3 for beam in found)
    assert all(request.params.max_tokens == 1 for request in beams.engine.requests)
    assert all(tuple(beam.tokens[:-1]) in {tuple(r.prompt_token_ids) for r in beams.engine.requests} for beam in found)


def test_chats_and_several_prompts_have_beams(beams):
    asked = {"use_beam_search": True, "n": 2, "max_tokens": 4}
    answer = beams.chat(**asked)
    found = expected(beams, "<user>hi<assistant>", BeamSearchParams(beam_width=2, max_tokens=4))
    texts = [beam.text.removeprefix("<user>hi<assistant>") for beam in found]
    assert [choice["message"]["content"] for choice in answer["choices"]] == texts
    both = beams.complete(prompt=["ab", "cd"], **asked)["choices"]
    alone = [choice for prompt in ("ab", "cd") for choice in beams.complete(prompt=prompt, **asked)["choices"]]
    assert [(choice["index"], choice["text"]) for choice in both] == [*enumerate(choice["text"] for choice in alone)]


def test_a_beam_search_that_fails_is_aborted_and_reported(beams):
    beams.engine.refusal = EngineDead("the engine is gone")
    response = beams.ask("POST", C, {"prompt": "abc", "use_beam_search": True, "n": 2, "max_tokens": 2})
    assert response.status_code >= 500


@pytest.mark.parametrize(("refused", "status"), [(0, 429), (1, 200), (5, 200)])
def test_a_beam_search_that_has_begun_waits_while_the_engine_is_full(beams, monkeypatch, refused, status):
    monkeypatch.setattr(errors, "MIN_PAUSE_S", 0.001)
    body = {"prompt": "abc", "use_beam_search": True, "n": 3, "max_tokens": 4}
    undisturbed, submit = beams.complete(**body)["choices"], beams.engine.submit
    first = len(beams.engine.requests)

    def submit_to_full(*args, **terms):
        request = submit(*args, **terms)
        if len(beams.engine.requests) - first == refused + 1:
            request.refusal = Overloaded("full", 0.001)
        return request

    beams.engine.submit = submit_to_full
    answer = beams.ask("POST", C, body)
    assert answer.status_code == status, answer.text
    assert status == 429 or answer.json()["choices"] == undisturbed


def ended(server: Server, reason: str) -> float:
    """Sequences that ended for this reason."""
    [count] = re.findall(rf'success_total{{.*finished_reason="{reason}".*}} (.*)', server.metrics())
    return float(count)


@pytest.mark.parametrize("pause_s", [0.01, 0.0])  # the client leaves during a step, or between two
def test_the_beams_of_a_client_that_leaves_are_counted(beams, pause_s):
    beams.engine.pause_s = pause_s
    body = {"prompt": "ab", "n": 3, "use_beam_search": True, "max_tokens": 60, "ignore_eos": True}

    async def talk() -> None:
        sender = Sender(beams, C, json.dumps(body).encode())
        sender.body_comes.set()
        while len(beams.engine.requests) < 6:
            assert not sender.task.done(), sender.sent
            await asyncio.sleep(0)
        sender.leaves.set()
        await sender.task

    asyncio.run(talk())
    assert ended(beams, "abort") == 3


def test_a_beam_search_in_progress_shows_the_tokens_of_its_beams(beams):
    beams.engine.pause_s = 0.01
    body = {"prompt": "ab", "n": 3, "use_beam_search": True, "max_tokens": 60, "ignore_eos": True}

    async def talk() -> dict:
        sender = Sender(beams, C, json.dumps(body).encode())
        sender.body_comes.set()
        while len(beams.engine.requests) < 7:  # one for the first tokens, three for the second ones, three more
            assert not sender.task.done(), sender.sent
            await asyncio.sleep(0)
        [found] = json.loads(await asyncio.to_thread(beams.operators, "GET", "/v1/requests"))["data"]
        sender.leaves.set()
        await sender.task
        return found

    found = asyncio.run(talk())
    assert found["status"] == "running"
    assert found["output_tokens"] in range(3 * 2, 3 * 60, 3)
    assert (found["num_choices"], found["num_unfinished"]) == (3, 3)


def test_a_beam_that_ends_with_an_error_is_counted(beams):
    beams.engine.fails_after = 1
    assert beams.ask("POST", C, {"prompt": "ab", "n": 3, "use_beam_search": True}).status_code == 500
    assert (ended(beams, "error"), ended(beams, "abort")) == (1, 0)


def test_the_best_of_several_outputs_are_returned_and_all_are_counted(folder):
    server = Server(folder, ends=False)
    server.engine.outputs = [server.tokenizer.encode(text) for text in ("abcd", "ef", "ghi", "jk")]
    answer = server.complete(n=3, best_of=4, temperature=1.0)  # the fake engine's tokens have one probability
    assert [choice["text"] for choice in answer["choices"]] == ["ef", "jk", "ghi"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 11
    [request] = server.engine.requests
    assert (request.params.n, request.params.logprobs) == (4, 0)
    shown = server.complete(n=1, best_of=2, logprobs=1)["choices"]
    assert [choice["logprobs"]["token_logprobs"] for choice in shown] == [[-0.5, -0.5]]
    assert [choice["text"] for choice in server.complete(n=2, best_of=2)["choices"]] == ["abcd", "ef"], "as without it"
    several = server.complete(prompt=["x", "y"], best_of=2)["choices"]
    assert [(choice["index"], choice["text"]) for choice in several] == [(0, "ef"), (1, "ef")]


@pytest.mark.parametrize(
    ("path", "fields", "param", "message"),
    [
        (C, {"n": 3, "best_of": 2}, "best_of", "best_of is 2 and n is 3"),
        (C, {"best_of": 2, "stream": True}, "best_of", "cannot be streamed"),
        (C, {"best_of": 129}, "best_of", "<= 128"),
        (C, {"best_of": 0}, "best_of", ">= 1"),
        (C, {"prompt": ["a"] * 3, "best_of": 100}, "n", "at most 256"),
        (C, {"best_of": 2, "use_beam_search": True}, "best_of", "leave out best_of"),
        (H, {"best_of": 2}, "best_of", "/v1/completions"),
        (C, {"use_beam_search": True, "stream": True}, "stream", "leave out stream"),
        (H, {"use_beam_search": True, "stream": True}, "stream", "leave out stream"),
        (C, {"use_beam_search": True, "n": 11}, "n", "the limit of a beam search is 10"),
        (C, {"use_beam_search": True, "length_penalty": 41}, "length_penalty", "<= 40"),
        (C, {"use_beam_search": True, "stop": "x"}, "stop", "no effect with use_beam_search"),
        (H, {"use_beam_search": True, "logit_bias": {"5": 1}}, "logit_bias", "no effect with use_beam_search"),
    ],
)
def test_contradictions_are_refused_by_name(beams, path, fields, param, message):
    prompt = {"prompt": "abc"} if path == C else {"messages": [{"role": "user", "content": "hi"}]}
    response = beams.ask("POST", path, {"max_tokens": 2} | prompt | fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert not beams.engine.requests

"""The same bytes every time, as a property: random requests one by one, all at once, on a small cache, with kills."""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from paged_serve.frontend.client.streams.deltas import TokenLogprobs
from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.client.sync_request import Request
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.messages.engine_core import Utility
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..serving import Server, serving

VOCAB_SIZE: int = json.loads((demo_model_folder() / "config.json").read_bytes())["vocab_size"]
LONGEST_PROMPT = 100
# A cache of 256 tokens and steps of 40: prompts are split into chunks, and late requests are preempted.
CROWDED = ("--num-blocks", "16", "--max-num-batched-tokens", "40", "--max-num-seqs", "16")


@dataclass(frozen=True)
class Question:
    prompt: list[int]
    params: SamplingParams


@dataclass
class Answer:
    """Everything received for one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str = ""


def random_params(rng: random.Random) -> SamplingParams:
    def maybe(chance: float, value: Any, otherwise: Any) -> Any:
        return value if rng.random() < chance else otherwise

    greedy = rng.random() < 0.3
    return SamplingParams(
        n=1 if greedy else rng.choice([1, 1, 1, 2, 3]),
        temperature=0.0 if greedy else rng.choice([0.3, 0.8, 1.0, 1.7]),
        top_p=maybe(0.4, rng.uniform(0.3, 0.99), 1.0),
        top_k=maybe(0.4, rng.randint(1, 60), 0),
        min_p=maybe(0.2, rng.uniform(0.0, 0.2), 0.0),
        presence_penalty=maybe(0.2, rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(0.2, rng.uniform(-1, 1), 0.0),
        repetition_penalty=maybe(0.2, rng.uniform(0.8, 1.5), 1.0),
        seed=maybe(0.7, rng.randrange(2**62), None),
        max_tokens=rng.choice([1, 16, 17, *(rng.randint(30, 120) for _ in range(3))]),
        min_tokens=maybe(0.3, rng.randint(0, 1), 0),
        ignore_eos=rng.random() < 0.7,
        stop_token_ids=maybe(0.3, tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(40)), ()),
        bad_words_token_ids=maybe(0.2, ((rng.randrange(3, VOCAB_SIZE),), (7, 8)), ()),
        logit_bias=maybe(0.2, {rng.randrange(3, VOCAB_SIZE): rng.uniform(-5, 5) for _ in range(4)}, None),
        allowed_token_ids=maybe(0.1, tuple(rng.sample(range(VOCAB_SIZE), 300)), None),
        logprobs=maybe(0.4, rng.randint(0, 5), None),
        prompt_logprobs=maybe(0.2, rng.randint(0, 3), None),
        skip_reading_prefix_cache=rng.random() < 0.1,
    )


def random_questions(seed: int, count: int) -> list[Question]:
    """Prompts of 1 to 100 tokens; many share the beginning of another one."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    for _ in range(count):
        shared = rng.choice(prompts)[: rng.choice([16, 48, LONGEST_PROMPT])] if prompts and rng.random() < 0.6 else []
        length = rng.randint(max(1, len(shared)), LONGEST_PROMPT)
        prompts.append(shared + [rng.randrange(3, VOCAB_SIZE) for _ in range(length - len(shared))])
    return [Question(prompt, random_params(rng)) for prompt in prompts]


def read(request: Request, n: int, on_delta: Callable[[], None] = lambda: None) -> list[Answer]:
    answers = [Answer() for _ in range(n)]
    for delta in request:
        answer = answers[delta.index]
        answer.token_ids += delta.token_ids
        answer.logprobs += delta.logprobs or []
        if delta.prompt_logprobs is not None:  # in the first delta, and empty for a prompt of one token
            answer.prompt_logprobs = delta.prompt_logprobs
        answer.finish_reason, answer.stop_token_id, answer.error = delta.finish_reason, delta.stop_token_id, delta.error
        on_delta()
    return answers


def one_by_one(client: Client, questions: list[Question]) -> list[list[Answer]]:
    return [read(client.submit(q.prompt, q.params), q.params.n) for q in questions]


def all_at_once(
    client: Client, questions: list[Question], on_delta: Callable[[], None] = lambda: None
) -> list[list[Answer]]:
    requests = [client.submit(q.prompt, q.params) for q in questions]
    return [read(request, q.params.n, on_delta) for request, q in zip(requests, questions, strict=True)]


def stats(client: Client) -> dict[str, int]:
    return msgspec.json.decode(client.utility(Utility.STATS))


def check_same(questions: list[Question], wanted: list[list[Answer]], found: list[list[Answer]]) -> None:
    """Check that everything is equal; floats are compared bit for bit, as there is no NaN among them."""
    for question, want, got in zip(questions, wanted, found, strict=True):
        assert got == want, f"prompt of {len(question.prompt)} tokens, {question.params}"
    assert all(answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) for got in found for answer in got)


def crowded(server: Server, questions: list[Question], wanted: list[list[Answer]], num_kills: int) -> dict[str, int]:
    """All requests at once on a small server, undisturbed, then with killed workers; returns the metrics in between."""
    with Client.connect(server.run_dir) as client:
        check_same(questions, wanted, all_at_once(client, questions))
        figures = stats(client)
        assert figures["num_preemptions"] > 0
        assert client.utility(Utility.CHECK_INVARIANTS) == b"{}"

        deltas, rng = itertools.count(1), random.Random(len(questions))
        kill_at = set(rng.sample(range(20, 10 * len(questions)), num_kills))

        def kill_now_and_then() -> None:
            if next(deltas) in kill_at:
                for worker in server.children("paged_serve.workers.process"):
                    worker.kill()

        check_same(questions, wanted, all_at_once(client, questions, kill_now_and_then))
        assert client.utility(Utility.CHECK_INVARIANTS) == b"{}"
        return figures


def check_workload(roomy: Server, seed: int, count: int, num_kills: int, *options: str) -> dict[str, int]:
    """Check that a small server with the same options gives the answers of `roomy` to one question after the other."""
    questions = random_questions(seed, count)
    with Client.connect(roomy.run_dir) as client:
        wanted = one_by_one(client, questions)
    with serving(*options, *CROWDED) as small:
        return crowded(small, questions, wanted, num_kills)


@pytest.mark.timeout(300)  # 15 s on an idle machine
def test_neighbours_chunks_preemption_and_a_killed_worker_change_no_byte(server):
    check_workload(server, seed=1, count=16, num_kills=1)


# In the fast tests, ranks are compared with one process in workers/distributed/, and a stream continues on others in
# recovery/resume/test_resume_restart.py.
@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("options", [(), ("--quantization", "int8"), ("--quantization", "int4")], ids=" ".join)
def test_any_number_of_ranks_gives_the_bytes_of_one(options, ranks):
    questions = random_questions(70 + ranks, 30)
    with serving(*options) as one, Client.connect(one.run_dir) as client:
        wanted = all_at_once(client, questions)
    with serving(*options, *CROWDED, "--tp", str(ranks)) as several, Client.connect(several.run_dir) as client:
        check_same(questions, wanted, all_at_once(client, questions))


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
@pytest.mark.parametrize("pipeline_depth", [1, 2, 3])
def test_many_requests_give_the_same_bytes_at_every_pipeline_depth(pipeline_depth, tensor_parallel_size):
    options = ("--pipeline-depth", str(pipeline_depth), "--tensor-parallel-size", str(tensor_parallel_size))
    count = 200 if tensor_parallel_size == 1 else 40  # two ranks on few cores wait for each other at every layer
    with serving(*options) as roomy:
        check_workload(roomy, 10 * tensor_parallel_size + pipeline_depth, count, 3, *options)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "options",
    [
        ("--quantization", "int8"),
        ("--quantization", "int8", "--tp", "2"),
        ("--quantization", "int4"),
        ("--kv-cache-dtype", "int8"),
    ],
    ids=" ".join,
)
def test_quantized_models_give_the_same_bytes(options):
    with serving(*options) as roomy:
        check_workload(roomy, 50 + len(options), 40, 2, *options)

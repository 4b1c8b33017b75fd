"""A model with states in real processes: kills amid streams, checkpoints that prompts and conversations start from."""

import itertools
import json
import re
from contextlib import ExitStack, closing

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.workers.kernels.cpu.library import runnable_isas

from ...workers.tiny_models.checkpoints import random_tokens
from ...workers.tiny_models.tiny_lfm2 import write_tiny_lfm2
from ..server_process import ServerProcess
from ..surfaces import STEP_TOKENS, OverZeroMQ, check_kills

PROMPT = {"prompt": "Once upon a time a little fox lived in a deep forest. " * 4}
LONG = {**PROMPT, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
VOCAB_SIZE = 1024  # the tokenizer's
BLOCK_SIZE = 32  # in which the model's states fit
pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.skipif(not runnable_isas(), reason="the kernels are not built"),
]


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.nightly)])
def start(tmp_path_factory, request):
    """Starts a server of the model, on one rank or two; all are closed at the end."""
    folder = tmp_path_factory.mktemp("lfm2")
    write_tiny_lfm2(folder, max_position_embeddings=1400, vocab_size=VOCAB_SIZE)
    options = (
        "--model",
        str(folder),
        "--tokenizer",
        str(demo_model_folder()),
        "--served-model-name",
        "demo",
        "--chat-template",
        str(demo_model_folder() / "chat_template.jinja"),
        "--max-num-batched-tokens",
        str(STEP_TOKENS),
        "--max-restarts",
        "1000",
        "--tp",
        request.param,
        "--no-standby-workers",
    )
    with ExitStack() as stack:

        def start(*more: str) -> ServerProcess:
            running = stack.enter_context(closing(ServerProcess(tmp_path_factory.mktemp("t"), *options, *more)))
            running.wait_ready()
            return running

        yield start


@pytest.fixture(scope="module")
def server(start):
    return start()


@pytest.mark.timeout(300)
def test_a_stream_goes_on_with_the_same_bytes_after_a_workers_death(server):
    undisturbed = server.complete(**LONG)
    stream = server.stream(**LONG)
    first = next(stream)
    server.children()["worker"].kill()
    rest = list(stream)
    assert len(rest) > 1, "the stream had ended before the kill"
    assert first + "".join(rest) == undisturbed
    assert server.complete(**LONG) == undisturbed, "from the prefix cache"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_drafts_change_no_byte_though_a_worker_and_the_core_are_killed(server, start):
    expected = server.complete(**LONG)
    with closing(start("--speculative", "ngram")) as speculating:
        for child in ("worker", "engine-core"):
            stream = speculating.stream(**LONG)
            first = next(stream)
            speculating.children()[child].kill()
            rest = list(stream)
            assert len(rest) > 1, "the stream had ended before the kill"
            assert first + "".join(rest) == expected
        assert speculating.complete(**LONG) == expected, "from the prefix cache"


def test_a_repeated_prompt_starts_from_a_checkpoint(server):
    with server.ask("POST", "/v1/completions", {**PROMPT, "max_tokens": 2, "stream": False}) as response:
        response.read()
    with server.ask("POST", "/v1/completions", {**PROMPT, "max_tokens": 2}) as response:
        found = re.search(rb'"cached_tokens": ?(\d+)', response.read())
    assert found
    assert int(found[1]) > 0


@pytest.mark.timeout(300)
def test_two_prompts_from_one_checkpoint_have_the_same_bytes_after_their_core_and_a_worker_died(server):
    shared = random_tokens(64, 1, VOCAB_SIZE)
    first, *both = ([*shared, *random_tokens(300, seed, VOCAB_SIZE)] for seed in (2, 3, 4))
    with closing(OverZeroMQ(server)) as surface:
        expected = [answer for prompt in both for answer in surface.ask([prompt])]
        check_kills(surface, both, first, expected, ("engine-core", "worker"), ["prompt"])


def test_each_turn_of_a_conversation_starts_from_a_checkpoint_of_the_turn_before(server):
    """With random weights an answer's bytes may not be its tokens when read again: the turns before it are found."""
    messages, found = [], []
    for turn in range(4):
        messages.append({"role": "user", "content": f"Tell me tale number {turn} of the fox in the deep forest. " * 3})
        with server.ask(
            "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 24, "seed": 1}
        ) as response:
            answer = json.loads(response.read())
        assert response.status == 200, answer
        messages.append(answer["choices"][0]["message"])
        usage = answer["usage"]
        found.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    for (earlier, _), (prompt_tokens, cached_tokens) in itertools.pairwise(found):
        assert earlier - BLOCK_SIZE < cached_tokens < prompt_tokens, found

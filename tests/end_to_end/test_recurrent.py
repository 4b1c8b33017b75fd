"""A model with states in the real processes: a worker is killed amid a stream, which goes on with the same bytes."""

import re

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.workers.kernels.cpu.library import runnable_isas

from ..workers.tiny_lfm2 import write_tiny_lfm2
from .server_process import ServerProcess

PROMPT = {"prompt": "Once upon a time a little fox lived in a deep forest. " * 4}
LONG = {**PROMPT, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.skipif(not runnable_isas(), reason="the kernels are not built"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lfm2")
    write_tiny_lfm2(folder, max_position_embeddings=1024, vocab_size=1024)
    options = (
        "--model",
        str(folder),
        "--tokenizer",
        str(demo_model_folder()),
        "--served-model-name",
        "demo",
        "--tp",
        "2",
    )
    running = ServerProcess(tmp_path_factory.mktemp("t"), *options)
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def test_a_stream_goes_on_with_the_same_bytes_after_a_workers_death(server):
    undisturbed = server.complete(**LONG)
    stream = server.stream(**LONG)
    first = next(stream)
    server.children()["worker"].kill()
    rest = list(stream)
    assert len(rest) > 1, "the stream had ended before the kill"
    assert first + "".join(rest) == undisturbed
    assert server.complete(**LONG) == undisturbed, "from the prefix cache"


def test_a_repeated_prompt_starts_from_a_checkpoint(server):
    with server.ask("POST", "/v1/completions", {**PROMPT, "max_tokens": 2, "stream": False}) as response:
        response.read()
    with server.ask("POST", "/v1/completions", {**PROMPT, "max_tokens": 2}) as response:
        found = re.search(rb'"cached_tokens": ?(\d+)', response.read())
    assert found
    assert int(found[1]) > 0

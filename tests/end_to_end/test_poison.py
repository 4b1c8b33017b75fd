"""A request that kills real workers, among 63 that do not."""

import threading
from pathlib import Path

import pytest

from paged_serve.engine_core.engine import DEADLY
from paged_serve.frontend.client import Client
from paged_serve.frontend.model_folder import demo_model_folder
from paged_serve.frontend.supervision.child import MODULES
from paged_serve.frontend.supervisor import Supervisor
from paged_serve.protocol.config import CacheConfig, Config, ModelConfig, ParallelConfig
from paged_serve.protocol.sampling_params import SamplingParams

POISON = 777  # as in poisoned_worker.py
NUM_STREAMS = 64

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


@pytest.fixture
def supervisor(monkeypatch, tmp_path_factory):
    """Of an engine without frontends, whose workers die of one token."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "poisoned"))
    config = Config(
        model=ModelConfig(model=str(demo_model_folder()), device="cpu"),
        cache=CacheConfig(num_blocks=1024),
        parallel=ParallelConfig(threads_per_rank=1),
    )
    supervisor = Supervisor(config, modules={**MODULES, "worker": "poisoned_worker"})
    supervisor.start()
    supervisor.wait_ready(60)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    yield supervisor
    supervisor.stop()
    thread.join(60)


def read_all(client: Client, prompts: list[list[int]]) -> list[tuple[list[int], str]]:
    """Tokens and error of each, asked for all at once."""
    asked = [
        client.submit(prompt, SamplingParams(max_tokens=24, seed=index, ignore_eos=True))
        for index, prompt in enumerate(prompts)
    ]
    answers = []
    for request in asked:
        tokens, error = [], ""
        for delta in request:
            tokens += delta.token_ids
            error = error or delta.error
        answers.append((tokens, error))
    return answers


def test_63_of_64_streams_are_the_same_and_the_one_that_kills_costs_two_worker_groups(supervisor):
    prompts = [[1 + index, 2, 3, 4] for index in range(NUM_STREAMS)]
    culprit = 40
    with Client.connect(supervisor.run_dir) as client:
        undisturbed = read_all(client, prompts)
        prompts[culprit] = [1, POISON]
        disturbed = read_all(client, prompts)
        assert disturbed[culprit][1] == DEADLY
        del undisturbed[culprit], disturbed[culprit]
        assert disturbed == undisturbed
        assert supervisor._recovery.engine_epoch == 2
        assert read_all(client, prompts[:culprit]) == undisturbed[:culprit], "the service goes on"

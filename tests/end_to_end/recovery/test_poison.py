"""A request that kills real workers, or real engine cores, among 63 that do not."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from paged_serve.engine_core.engine.endings import DEADLY
from paged_serve.frontend.client.session.dispatch import DEADLY as DEADLY_FOR_CORES
from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.supervision.processes.child import MODULES
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig
from paged_serve.protocol.messages.sampling_params import SamplingParams

POISON, SLOW_POISON, UNLUCKY = 777, 778, 779  # the values of poisoned_worker.py and poisoned_core.py
NUM_STREAMS = 64

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


@pytest.fixture
def supervise(monkeypatch, tmp_path_factory) -> Iterator[Callable[..., Supervisor]]:
    """An engine without frontends, one of whose modules crashes on one token."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "poisoned"))
    config = Config(
        model=ModelConfig(model=str(demo_model_folder()), device="cpu"),
        cache=CacheConfig(num_blocks=1024),
        parallel=ParallelConfig(threads_per_rank=1, standby_workers=False),
    )
    with ExitStack() as ends:

        def supervise(**modules: str) -> Supervisor:
            poisoned = {name.replace("_", "-"): module for name, module in modules.items()}
            supervisor = Supervisor(config, modules={**MODULES, **poisoned})
            supervisor.start()
            supervisor.wait_ready(60)
            thread = threading.Thread(target=supervisor.run)
            thread.start()
            ends.callback(thread.join, 60)
            ends.callback(supervisor.stop)
            return supervisor

        yield supervise


def read_all(clients: list[Client], prompts: list[list[int]]) -> list[tuple[list[int], str]]:
    """(tokens, error) of each prompt; all are submitted at once, distributed over the clients."""
    asked = [
        clients[index % len(clients)].submit(prompt, SamplingParams(max_tokens=24, seed=index, ignore_eos=True))
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


def test_63_of_64_streams_are_exact_and_the_poison_request_costs_three_worker_groups(supervise):
    supervisor = supervise(worker="poisoned_worker")
    prompts = [[1 + index, 2, 3, 4] for index in range(NUM_STREAMS)]
    poison = 40
    with Client.connect(supervisor.run_dir) as client:
        undisturbed = read_all([client], prompts)
        prompts[poison] = [1, POISON]
        disturbed = read_all([client], prompts)
        assert disturbed[poison][1] == DEADLY
        del undisturbed[poison], disturbed[poison]
        assert disturbed == undisturbed
        assert supervisor._recovery.engine_epoch == 3
        assert read_all([client], prompts[:poison]) == undisturbed[:poison], "the service continues"


def test_a_request_that_is_alone_when_a_worker_crashes_for_another_reason_goes_on_exactly(supervise):
    supervisor = supervise(worker="poisoned_worker")
    prompts = [[1 + index, 2, 3, UNLUCKY if index == 5 else 4] for index in range(8)]
    with Client.connect(supervisor.run_dir) as client:
        disturbed = read_all([client], prompts)
        assert supervisor._recovery.engine_epoch == 2
        assert disturbed == read_all([client], prompts)
        assert not any(error for _, error in disturbed)


# In the fast tests, cores of simulations are poisoned (simulation/test_core_poison.py), and a real supervisor's
# children (frontend/supervision/test_supervisor_cores.py).
@pytest.mark.nightly
def test_63_of_64_streams_of_two_clients_are_exact_and_the_poison_request_costs_three_cores(supervise):
    supervisor = supervise(engine_core="poisoned_core")
    prompts = [[1 + index, 2, 3, 4] for index in range(NUM_STREAMS)]
    poison = 40
    with Client.connect(supervisor.run_dir) as one, Client.connect(supervisor.run_dir) as other:
        undisturbed = read_all([one, other], prompts)
        prompts[poison] = [1, POISON]
        disturbed = read_all([one, other], prompts)
        assert disturbed[poison][1] == DEADLY_FOR_CORES
        del undisturbed[poison], disturbed[poison]
        assert disturbed == undisturbed
        assert supervisor._recovery.engine_epoch == 3
        assert read_all([one], prompts[:8]) == undisturbed[:8], "the service continues"


@pytest.mark.nightly
def test_two_core_poison_requests_end_with_an_error_and_no_others_do(supervise):
    supervisor = supervise(engine_core="poisoned_core")
    prompts = [[1 + index, 2, 3, 4] for index in range(12)]
    with Client.connect(supervisor.run_dir) as one, Client.connect(supervisor.run_dir) as other:
        undisturbed = read_all([one, other], prompts)
        poison_requests = (4, 7)
        for poison in poison_requests:
            prompts[poison] = [1 + poison, SLOW_POISON]
        disturbed = read_all([one, other], prompts)
        assert {i: error for i, (_, error) in enumerate(disturbed) if error} == dict.fromkeys(
            poison_requests, DEADLY_FOR_CORES
        )
        assert all(disturbed[i] == undisturbed[i] for i in range(12) if i not in poison_requests)
        assert read_all([one], prompts[:4]) == undisturbed[:4], "the service continues"

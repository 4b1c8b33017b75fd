"""Real workers that wait forever for their model: a first start ends, and streams outlive a later one."""

from pathlib import Path

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.supervision.processes.child import MODULES
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig, ServerConfig

from .replaced_worker import continue_a_stream

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")
IMPORTS_WITHIN_S = 20.0  # torch, without progress; on a busy machine a load that takes longer is repeated


@pytest.fixture
def supervisor(monkeypatch, tmp_path_factory):
    """An engine without frontends, for a time without progress."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "poisoned"))

    def make(stuck_epoch: int, load_timeout_s: float) -> Supervisor:
        monkeypatch.setenv("STUCK_EPOCH", str(stuck_epoch))
        config = Config(
            model=ModelConfig(model=str(demo_model_folder()), device="cpu"),
            cache=CacheConfig(num_blocks=128),
            parallel=ParallelConfig(threads_per_rank=1, load_timeout_s=load_timeout_s),
            server=ServerConfig(max_restarts=100),
        )
        return Supervisor(config, modules={**MODULES, "worker": "stuck_worker"})

    return make


def test_a_first_start_ends_with_the_reason_and_the_option(supervisor):
    starting = supervisor(0, load_timeout_s=2.0)
    starting.start()
    with pytest.raises(EngineDead, match=r"loading has made no progress for 2 s; .*--load-timeout \(2\)"):
        starting.wait_ready(120)
    assert (starting.exit_code, starting._recovery.engine_epoch) == (1, 0)


@pytest.mark.nightly
def test_a_stream_continues_when_its_new_worker_never_gets_its_model(supervisor):
    assert continue_a_stream(supervisor(1, IMPORTS_WITHIN_S), 120) >= 2

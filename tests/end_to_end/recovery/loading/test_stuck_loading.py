"""Real workers that wait forever for their model: a first start ends, and streams outlive a later one."""

from pathlib import Path

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.listen import open_http_socket
from paged_serve.frontend.supervision.processes.child import MODULES, Role
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.errors import EngineDead
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig, ServerConfig

from .replaced_worker import continue_a_stream

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")
IMPORTS_WITHIN_S = 20.0  # torch, without progress; on a busy machine a load that takes longer is repeated


@pytest.fixture
def supervisor(monkeypatch, tmp_path_factory):
    """An engine for a time without progress, with frontends only if one is stuck."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "poisoned"))

    def make(stuck_epoch: int, load_timeout_s: float, role: Role = "worker") -> Supervisor:
        monkeypatch.setenv("STUCK_EPOCH", str(stuck_epoch))
        config = Config(
            model=ModelConfig(model=str(demo_model_folder()), device="cpu"),
            cache=CacheConfig(num_blocks=128),
            parallel=ParallelConfig(threads_per_rank=1, load_timeout_s=load_timeout_s),
            server=ServerConfig(max_restarts=100, port=0),
        )
        listener = open_http_socket(config.server) if role == "frontend" else None
        return Supervisor(config, listener, modules={**MODULES, role: f"stuck_{role}"})

    return make


@pytest.mark.parametrize(
    ("role", "limit_s"),
    [("worker", 2.0), pytest.param("frontend", IMPORTS_WITHIN_S, marks=pytest.mark.nightly)],  # its worker is not stuck
)
def test_a_first_start_ends_with_the_reason_and_the_option(supervisor, role, limit_s):
    starting = supervisor(0, limit_s, role)
    starting.start()
    with pytest.raises(EngineDead, match=rf"{role} 0 .*no progress for {limit_s:g} s; .*--load-timeout"):
        starting.wait_ready(120)
    assert (starting.exit_code, starting._recovery.engine_epoch) == (1, 0)


@pytest.mark.nightly
def test_a_stream_continues_when_its_new_worker_never_gets_its_model(supervisor):
    assert continue_a_stream(supervisor(1, IMPORTS_WITHIN_S), 120) >= 2

"""Real workers whose memory does not suffice: a first start is refused, a later one is tried again."""

import re
from pathlib import Path

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.supervision.processes.child import MODULES
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig

from .replaced_worker import continue_a_stream

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


@pytest.fixture
def supervisor(monkeypatch, tmp_path_factory):
    """An engine without frontends; CRAMPED_EPOCH is to be set before its start."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "poisoned"))
    config = Config(
        model=ModelConfig(model=str(demo_model_folder()), device="cpu"),
        cache=CacheConfig(num_blocks=128),
        parallel=ParallelConfig(threads_per_rank=1),
    )
    return Supervisor(config, modules={**MODULES, "worker": "cramped_worker"})


def test_a_first_start_ends_at_once_with_what_is_needed_what_there_is_and_the_remedy(supervisor, monkeypatch):
    monkeypatch.setenv("CRAMPED_EPOCH", "0")
    supervisor.start()
    with pytest.raises(ConfigError, match=r"^memory ran out while the model was loaded: ") as refusal:
        supervisor.wait_ready(60)
    weights_bytes = (demo_model_folder() / "model.safetensors").stat().st_size
    assert f"its checkpoint has {weights_bytes} bytes" in str(refusal.value)
    assert re.search(r"\d+ are free; use --quantization .*, or free memory", str(refusal.value))
    assert (supervisor.exit_code, supervisor._recovery.engine_epoch) == (2, 0)


def test_a_stream_continues_when_memory_was_short_for_its_new_worker(supervisor, monkeypatch):
    monkeypatch.setenv("CRAMPED_EPOCH", "1")
    assert continue_a_stream(supervisor, 60) == 2

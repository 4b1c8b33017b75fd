"""A background response that kills real frontends, between two that do not."""

import http.client
import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.http.routes.stored.resume import DEADLY
from paged_serve.frontend.listen import open_http_socket
from paged_serve.frontend.supervision.processes.child import MODULES
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig, ServerConfig
from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS

from ..serving import supervised

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")
POISON = "deadly nightshade"  # the text of poisoned_frontend.py
WITHIN_S = 200.0


@pytest.fixture
def supervisor(monkeypatch, tmp_path_factory):
    """A server that ends if it counts a restart more than the search for one poison request needs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "poisoned"))
    stored = str(tmp_path_factory.mktemp("stored"))
    enough = ServerConfig(port=0, store_responses=stored, max_restarts=1 + DEADLY_ISOLATIONS, restart_window_s=3600.0)
    config = Config(
        model=ModelConfig(model=str(demo_model_folder()), device="cpu"),
        cache=CacheConfig(num_blocks=128),
        parallel=ParallelConfig(threads_per_rank=1, standby_workers=False),
        server=enough,
    )
    supervisor = Supervisor(
        config, open_http_socket(config.server), modules={**MODULES, "frontend": "poisoned_frontend"}
    )
    with supervised(supervisor) as running:
        yield running


def ask(supervisor: Supervisor, method: str, path: str, body: dict | None = None, **headers: str) -> dict:
    """The answer of the frontend that lives long enough to give one."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with closing(http.client.HTTPConnection(*supervisor._http_socket.getsockname(), timeout=WITHIN_S)) as link:
            try:
                link.request(method, path, json.dumps(body or {}), {"content-type": "application/json", **headers})
                return json.loads(link.getresponse().read())
            except (OSError, http.client.HTTPException):
                continue  # its frontend has died
    raise AssertionError("no frontend has answered")


def begin(supervisor: Supervisor, text: str, key: str) -> str:
    """The id of a background response; a repeated request finds it by its key."""
    body = {"input": text, "background": True, "max_output_tokens": 64, "temperature": 0}
    return ask(supervisor, "POST", "/v1/responses", body, **{"idempotency-key": key})["id"]


def ended(supervisor: Supervisor, answer_id: str) -> dict:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        answer = ask(supervisor, "GET", f"/v1/responses/{answer_id}")
        if answer.get("status", "queued") not in ("queued", "in_progress"):  # while a frontend starts it is an error
            return answer
    raise AssertionError(f"{answer_id} does not end: {answer}")


def text_of(answer: dict) -> str:
    return "".join(part["text"] for item in answer["output"] for part in item["content"])


@pytest.mark.timeout(600)
def test_two_of_three_background_responses_are_exact_and_the_poison_costs_three_frontends(supervisor):
    undisturbed = [text_of(ended(supervisor, begin(supervisor, text, f"alone-{text}"))) for text in ("one", "two")]
    texts = ("one", POISON, "two")
    first, poison, last = [
        ended(supervisor, each) for each in [begin(supervisor, text, f"key-{text[:3]}") for text in texts]
    ]
    assert (poison["status"], poison["error"]["message"]) == ("failed", f"It could not be resumed: {DEADLY}.")
    assert [text_of(first), text_of(last)] == undisturbed
    [frontend] = supervisor._processes.of_role("frontend")
    assert frontend.epoch == 1 + DEADLY_ISOLATIONS
    begin(supervisor, POISON, "again")
    assert ended(supervisor, begin(supervisor, "one", "after"))["status"] == "completed", "the restarts do not count"

"""Texts on which a real tokenizer does not return: in a thread, where only heartbeats show it, and on the event loop.

The tokenizer is the demo model's with one more expression, which takes minutes for a long run of one letter.
"""

import http.client
import json
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from paged_serve.frontend.cli.http_client import HttpClient
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.listen import open_http_socket
from paged_serve.frontend.supervision.processes.child import MODULES
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.frontend.text.off_loop import INLINE_CHARS
from paged_serve.frontend.text.poison_texts import DEADLY_FAILURES
from paged_serve.protocol.errors import TOKENIZER_FAILS
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig, ServerConfig

from ..serving import supervised

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")
WITHIN_S = 200.0
EXPRESSION = "x*x*[yz]w"  # cubic in a run of x
RUN = "x" * 4000 + " "  # a minute
ON_LOOP = RUN + "wy"
IN_THREAD = 4 * RUN + "wy"
STORY = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "seed": 7}


def model_folder(folder: Path) -> Path:
    shutil.copytree(demo_model_folder(), folder)
    declared = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": EXPRESSION}, "behavior": "Isolated", "invert": False}
    declared["pre_tokenizer"]["pretokenizers"].insert(0, split)
    (folder / "tokenizer.json").write_text(json.dumps(declared))
    return folder


@pytest.fixture
def supervisor(monkeypatch, tmp_path_factory):
    """A server that ends if it counts a restart more than one text costs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "poisoned"))
    config = Config(
        model=ModelConfig(model=str(model_folder(tmp_path_factory.mktemp("m") / "demo")), device="cpu"),
        cache=CacheConfig(num_blocks=128),
        parallel=ParallelConfig(threads_per_rank=1, standby_workers=False),
        server=ServerConfig(port=0, max_restarts=DEADLY_FAILURES, restart_window_s=3600.0),
    )
    modules = {**MODULES, "frontend": "impatient_frontend"}
    supervisor = Supervisor(config, open_http_socket(config.server), modules=modules)
    with supervised(supervisor) as running:
        yield running


def answer_to(supervisor: Supervisor, text: str) -> tuple[int, str | None, dict]:
    """(status, x-should-retry, answer); ConnectionError or HTTPException if the frontend ends first."""
    address = supervisor._http_socket.getsockname()
    with closing(http.client.HTTPConnection(*address, timeout=WITHIN_S)) as link:
        link.request("POST", "/tokenize", json.dumps({"prompt": text}), {"content-type": "application/json"})
        response = link.getresponse()
        return response.status, response.getheader("x-should-retry"), json.loads(response.read())


def send_until_refused(supervisor: Supervisor, text: str) -> tuple[int, str | None, dict]:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException):  # its frontend has ended
            status, retry, answer = answer_to(supervisor, text)
            if status not in (429, 503):  # its frontend ends, or starts
                return status, retry, answer
    raise AssertionError("it was never refused")


def check_poison(supervisor: Supervisor, text: str) -> None:
    client = HttpClient("http://{}:{}".format(*supervisor._http_socket.getsockname()))
    undisturbed = [event["choices"][0]["text"] for event in client.stream("/v1/completions", STORY)]
    events = client.stream("/v1/completions", STORY)
    received = [next(events)["choices"][0]["text"]]
    status, retry, answer = send_until_refused(supervisor, text)
    assert (status, retry) == (500, "false"), answer
    assert TOKENIZER_FAILS in answer["error"]["message"]
    assert [*received, *(event["choices"][0]["text"] for event in events)] == undisturbed
    [frontend] = supervisor._processes.of_role("frontend")
    assert frontend.epoch == DEADLY_FAILURES
    assert answer_to(supervisor, "harmless " * INLINE_CHARS)[0] == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        answer_to(supervisor, text + "!")
    assert answer_to_successor(supervisor, "harmless")[0] == 200, "the restarts do not count"


def answer_to_successor(supervisor: Supervisor, text: str) -> tuple[int, str | None, dict]:
    while (found := answer_to(supervisor, text))[0] == 503:
        pass
    return found


@pytest.mark.timeout(300)
def test_a_text_on_which_a_thread_hangs_costs_three_frontends_and_no_other_answer(supervisor):
    assert len(IN_THREAD) > INLINE_CHARS
    check_poison(supervisor, IN_THREAD)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_text_on_which_the_event_loop_hangs_costs_three_frontends_and_no_other_answer(supervisor):
    assert len(ON_LOOP) <= INLINE_CHARS
    check_poison(supervisor, ON_LOOP)

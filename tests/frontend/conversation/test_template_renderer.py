"""Templates in helper processes: one that computes forever or takes all memory ends only its process."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path

import pytest

from paged_serve.frontend.conversation.chat_template import ChatTemplate
from paged_serve.frontend.conversation.conversation import TemplateInput
from paged_serve.frontend.conversation.template_process import Templates
from paged_serve.frontend.conversation.template_renderer import TemplateRenderer
from paged_serve.frontend.helpers.helper_pool import MAX_PROCESSES
from paged_serve.protocol.errors import ConfigError, InvalidRequest, PagedServeError

SOURCE = """{{ bos }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- if busy %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}
{%- if fat %}{{ "x" * fat }}{% endif %}{% if refuses %}{{ raise_exception("no " + refuses) }}{% endif %}
{%- if add_generation_prompt %}>{% endif %}"""


def ask(renderer: TemplateRenderer, text: str, **kwargs) -> str:
    given = TemplateInput([{"role": "user", "content": text}], None, True, False, kwargs)
    return asyncio.run(renderer.render(given))


def pids(renderer: TemplateRenderer) -> list[int]:
    return [process.pid for process in renderer.helpers.places.queue if process is not None]


@pytest.fixture
def renderer():
    renderer = TemplateRenderer(Templates({"default": SOURCE}, {"bos": "^"}))
    yield renderer
    renderer.close()


def test_a_helper_renders_the_same_text_as_this_process(renderer):
    tools = [{"type": "function", "function": {"name": "f", "n": 2**70, "x": [1.5, None, "é\n\U0001f600"]}}]
    messages = [{"role": "user", "content": "a" * 100_000}]
    here = ChatTemplate(SOURCE, {"bos": "^"}).render(messages, tools=tools, add_generation_prompt=False)
    assert asyncio.run(renderer.render(TemplateInput(messages, tools, False, False, {}))) == here
    goes_on = renderer.render_now(TemplateInput(messages, None, False, True, {}))
    assert goes_on == "^<user>" + "a" * 100_000
    assert ask(renderer, "hi") == "^<user>hi>"
    assert len(pids(renderer)) == 1


def test_a_refusal_has_the_templates_own_text(renderer):
    with pytest.raises(InvalidRequest, match="refuses these messages: no way"):
        ask(renderer, "", refuses="way")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ ('a' * 10**10)|length }}", "more than 512 MiB"),
        ("{{ 9**(9**9) }}", "more than 1 s of processor time"),
        ("{{ 1 * (10**9999) }}", "does not compile .ValueError."),
        ("{{ messages | random }}", "No filter named 'random'"),
        ("{% if %}", "does not compile: Expected"),
    ],
)
def test_an_unusable_template_is_refused_at_the_start_without_cost_to_this_process(source, words):
    renderer = TemplateRenderer(Templates({"default": source}))
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(ConfigError, match=words):
        renderer.start()
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 0.5, "this process did none of the work"
    assert not pids(renderer)
    renderer.close()


@pytest.mark.parametrize("source", ["{{ '\\ud800' }}", "{{ raise_exception('\\ud800') }}", "{{ lipsum() }}"])
def test_output_that_is_not_text_is_a_refusal(source):
    renderer = TemplateRenderer(Templates({"default": source}))
    with pytest.raises(InvalidRequest, match="chat template"):
        ask(renderer, "hi")
    assert len(pids(renderer)) == 1, "the helper is still running"
    renderer.close()


def test_a_helper_has_few_rights_and_of_the_environment_only_the_folders_of_libraries(renderer, monkeypatch):
    monkeypatch.setenv("PAGED_SERVE_API_KEY", "secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib")
    renderer.start()
    (pid,) = pids(renderer)
    assert Path(f"/proc/{pid}/environ").read_bytes() == b"LD_LIBRARY_PATH=/opt/python/lib\0"
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["NoNewPrivs"] == "1"
    if find_library("seccomp"):
        assert status["Seccomp"] == "2"


def test_a_confined_process_can_open_nothing():
    program = "from paged_serve.frontend.helpers.confinement import *\n"
    program += "forbid_new_privileges(); ok = forbid_system_calls()\n"
    program += "try: open('/proc/self/status')\nexcept PermissionError: print('refused')\nelse: print('opened', ok)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("refused" if find_library("seccomp") else "opened False")


def test_all_idle_helpers_but_one_end():
    renderer = TemplateRenderer(Templates({"default": SOURCE}), idle_s=0.1)
    with ThreadPoolExecutor(2) as threads:
        renderer.start()
        (first,) = pids(renderer)
        os.kill(first, signal.SIGSTOP)
        slow = threads.submit(ask, renderer, "slow")
        while renderer.helpers.places.qsize() == MAX_PROCESSES:
            pass
        assert ask(renderer, "hi") == "<user>hi>"
        os.kill(first, signal.SIGCONT)
        assert slow.result(60) == "<user>slow>"
    deadline = time.monotonic() + 60
    while len(pids(renderer)) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ask(renderer, "again") == "<user>again>"
    renderer.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_leaves_the_helpers_alone(renderer):
    renderer.start()
    (pid,) = pids(renderer)
    if (child := os.fork()) == 0:
        renderer.helpers.finalizer()
        os._exit(0)
    os.waitpid(child, 0)
    assert pids(renderer) == [pid]
    assert ask(renderer, "hi") == "^<user>hi>"
    assert pids(renderer) == [pid]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"busy": True}, "more than 1 s of processor time"),
        ({"fat": 10**9}, "more than 512 MiB"),
        ({"fat": 20_000_000}, "20000008 characters"),
    ],
)
def test_a_rendering_over_the_limits_is_refused_and_the_next_is_answered(renderer, options, words):
    with pytest.raises(InvalidRequest, match=words) as refused:
        ask(renderer, "", **options)
    assert refused.value.param == "messages"
    assert ask(renderer, "hi") == "^<user>hi>"


def test_a_slow_rendering_does_not_delay_others(renderer):
    renderer.start()
    (pid,) = pids(renderer)
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(ask, renderer, "slow")
        while renderer.helpers.places.qsize() == MAX_PROCESSES:
            pass
        assert ask(renderer, "hi") == "^<user>hi>"
        assert not slow.done()
        os.kill(pid, signal.SIGCONT)
        assert slow.result(60) == "^<user>slow>"


def test_a_helper_killed_from_outside_costs_the_request_nothing(renderer):
    renderer.start()
    (pid,) = pids(renderer)
    os.kill(pid, signal.SIGKILL)
    assert ask(renderer, "hi") == "^<user>hi>"
    assert pid not in pids(renderer)


def test_a_halted_helper_is_replaced(renderer):
    renderer.start()
    (pid,) = pids(renderer)
    renderer.helpers.places.queue[-1].answer_timeout_s = 0.2  # only this helper has such a short time limit
    os.kill(pid, signal.SIGSTOP)
    assert ask(renderer, "hi") == "^<user>hi>"
    assert pid not in pids(renderer)


def interrupt_when_waiting(main: threading.Thread) -> None:
    """Ctrl-C while the main thread waits for a helper."""
    while sys._current_frames()[main.ident].f_code.co_name != "_await":
        pass
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def interrupts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_answer_of_an_interrupted_rendering_is_never_that_of_the_next(renderer, interrupts):
    renderer.start()
    (pid,) = pids(renderer)
    os.kill(pid, signal.SIGSTOP)
    first, second = (TemplateInput([{"role": "user", "content": text}], None, True, False, {}) for text in ("1", "2"))
    with ThreadPoolExecutor(1) as threads:
        interrupting = threads.submit(interrupt_when_waiting, threading.main_thread())
        with pytest.raises(KeyboardInterrupt):
            renderer.render_now(first)
        interrupting.result()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    assert renderer.render_now(second) == "^<user>2>"


def test_helpers_that_cannot_start_are_a_server_error(renderer, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(PagedServeError, match="repeatedly"):
        ask(renderer, "hi")


def test_no_helper_remains_after_closing(renderer):
    renderer.start()
    (pid,) = pids(renderer)
    renderer.close()
    assert not os.path.exists(f"/proc/{pid}")

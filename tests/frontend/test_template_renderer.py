"""Templates in processes of their own: what computes for ever, or asks for all memory, ends alone."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from paged_serve.frontend.text.chat_template import ChatTemplate
from paged_serve.frontend.text.conversation import TemplateInput
from paged_serve.frontend.text.template_process import Templates
from paged_serve.frontend.text.template_renderer import MAX_PROCESSES, TemplateRenderer
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
    return [process.pid for process in renderer._places.queue if process is not None]


@pytest.fixture
def renderer():
    renderer = TemplateRenderer(Templates({"default": SOURCE}, {"bos": "^"}))
    yield renderer
    renderer.close()


def test_it_says_what_the_template_says_here(renderer):
    tools = [{"type": "function", "function": {"name": "f", "n": 2**70, "x": [1.5, None, "é\n\U0001f600"]}}]
    messages = [{"role": "user", "content": "a" * 100_000}]
    here = ChatTemplate(SOURCE, {"bos": "^"}).render(messages, tools=tools, add_generation_prompt=False)
    assert asyncio.run(renderer.render(TemplateInput(messages, tools, False, False, {}))) == here
    goes_on = renderer.render_now(TemplateInput(messages, None, False, True, {}))
    assert goes_on == "^<user>" + "a" * 100_000
    assert ask(renderer, "hi") == "^<user>hi>"
    assert len(pids(renderer)) == 1


def test_a_refusal_has_the_templates_own_words(renderer):
    with pytest.raises(InvalidRequest, match="refuses these messages: no way"):
        ask(renderer, "", refuses="way")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"busy": True}, "more than 1 s of processor time"),
        ({"fat": 10**9}, "more than 512 MiB"),
        ({"fat": 20_000_000}, "20000008 characters"),
    ],
)
def test_too_much_is_refused_and_the_next_is_answered(renderer, options, words):
    with pytest.raises(InvalidRequest, match=words) as refused:
        ask(renderer, "", **options)
    assert refused.value.param == "messages"
    assert ask(renderer, "hi") == "^<user>hi>"


def test_others_are_answered_while_one_takes_its_time(renderer):
    renderer.start()
    (pid,) = pids(renderer)
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(ask, renderer, "slow")
        while renderer._places.qsize() == MAX_PROCESSES:
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
    renderer._places.queue[-1]._link.settimeout(0.2)  # only this one is given up so soon
    os.kill(pid, signal.SIGSTOP)
    assert ask(renderer, "hi") == "^<user>hi>"
    assert pid not in pids(renderer)


def test_helpers_that_cannot_live_are_the_servers_fault(renderer, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(PagedServeError, match="again and again"):
        ask(renderer, "hi")


def test_no_helper_is_left(renderer):
    renderer.start()
    (pid,) = pids(renderer)
    renderer.close()
    assert not os.path.exists(f"/proc/{pid}")

"""Templates that leave the sandbox or never end, and conversations that look like templates: none has an effect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paged_serve.frontend.conversation.chat_template import ChatTemplate
from paged_serve.frontend.conversation.conversation import TemplateInput
from paged_serve.frontend.conversation.template_process import Templates
from paged_serve.frontend.conversation.template_renderer import TemplateRenderer
from paged_serve.protocol.errors import InvalidRequest

ROOT = Path(__file__).parent.parent.parent
WAYS = [  # to an attribute that leads out of the sandbox
    *("__class__", "__class__.__mro__", "__class__.__base__", "__class__.__bases__[0]", "__class__.mro()"),
    *(
        "__class__.__mro__[1].__subclasses__()",
        "__init__.__globals__",
        "__init_subclass__",
        "__dict__",
        "__doc__.__class__",
    ),
    *(
        "__reduce__()",
        "__reduce_ex__(2)",
        "__subclasshook__",
        "__getattribute__('__class__')",
        "__dir__()",
        "__module__",
    ),
]
HOLDERS = [
    "''",
    "[]",
    "{}",
    "1",
    "messages",
    "messages[0]",
    "bos_token",
    "cycler",
    "namespace()",
    "self",
    "raise_exception",
]
ESCAPES = [
    *(f"{{{{ {holder}.{way} }}}}" for holder in HOLDERS for way in WAYS),
    *(f"{{{{ ''['{way}'] }}}}" for way in ("__class__", "__mro__", "__init__")),
    *(f"{{{{ '' | attr('{way}') }}}}" for way in ("__class__", "__mro__", "__init__")),
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ ''|attr('__cla' ~ 'ss__') }}",
    "{{ ''['__cla' 'ss__'] }}",
    "{{ ''|attr(['__class','__']|join) }}",
    "{{ ''|attr('%c%cclass%c%c'|format(95,95,95,95)) }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{x.__init__.__globals__}'.format_map({'x': cycler}) }}",
    "{{ ('{0.__class__}' | string).format(messages) }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ messages | map(attribute='content.__class__') | list }}",
    "{{ messages | groupby('__class__') }}",
    "{{ messages | sum(attribute='__class__') }}",
    "{{ messages | selectattr('__class__') | list }}",
    "{{ messages | sort(attribute='__class__') }}",
    "{{ messages | map('attr', '__class__') | list }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__.os.system('id') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
    "{{ self.__init__.__globals__.__builtins__.__import__('os') }}",
    "{{ raise_exception.__globals__.json.codecs.builtins.open('/etc/passwd').read() }}",
    "{{ strftime_now.__func__ }}{{ strftime_now.func.__globals__ }}",
    "{{ strftime_now.func }}",
    "{{ dict.__mro__ }}",
    "{{ dict.mro() }}",
    "{{ range.__class__ }}",
    "{% set x = messages.append({}) %}{{ x }}",
    "{% do messages.clear() %}",
    "{% set _ = messages[0].update({'content': 'evil'}) %}{{ messages[0].content }}",
    "{{ messages[0].setdefault('a', 1) }}",
    "{{ messages.sort() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.getcwd() }}",
    "{% from 'os' import getcwd %}",
    "{% extends '/etc/passwd' %}",
    "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterator.__reduce__() }}{% endfor %}",
    "{{ (messages | map('upper')).gi_frame.f_back.f_globals }}",
    "{{ (messages | select).gi_code }}",
    "{{ ''.encode().__class__ }}",
    "{{ messages | tojson(cls=cycler) }}",
    "{{ messages | tojson(default=raise_exception.__class__) }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ eval('1') }}{{ __import__('os') }}{{ exec('1') }}",
    "{{ get_flashed_messages.__globals__ }}{{ url_for.__globals__ }}{{ request.application }}{{ config.items() }}",
]
# Signs of an escape in the output: a class, a function, a module, an account, a working directory.
SIGNS = [
    "<class",
    "<function",
    "<bound method",
    "<built-in",
    "<module",
    "<frame",
    "<code",
    "uid=",
    "root:",
    "/root",
    "mappingproxy",
]


def render_all(sources: list[str]) -> list[tuple[str, str, list[str]]]:
    program = Path(__file__).with_name("template_escapes.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, program],
        input=json.dumps(sources),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(found) for found in json.loads(done.stdout)]


def test_no_template_leaves_the_sandbox():
    assert len(ESCAPES) > 200
    found = render_all(ESCAPES)
    showing = []
    for source, (_outcome, text, events) in zip(ESCAPES, found, strict=True):
        assert not events, f"{source} made the process do {events}"
        if [sign for sign in SIGNS if sign in text]:
            showing.append(f"{source} shows {text}")
    assert not showing
    assert {outcome for outcome, _, _ in found} == {"rendered", "refused", "does not compile"}
    assert "evil" not in {text for _, text, _ in found}


def test_the_watch_detects_what_a_template_without_a_sandbox_would_do():
    source = "{{ namespace(a=1).a }}{% set x %}{{ strftime_now('%Y') }}{% endset %}{{ x | length }}"
    [(outcome, text, events)] = render_all([source])
    assert (outcome, text, events) == ("rendered", "14", [])
    program = (
        "import sys; found = []; sys.addaudithook(lambda event, _: found.append(event)); open('/dev/null').close()"
    )
    seen = subprocess.run(
        [sys.executable, "-c", f"{program}; print(found)"], capture_output=True, text=True, check=True
    )
    assert "open" in seen.stdout


@pytest.mark.parametrize("content", ESCAPES[::7])
def test_a_conversation_is_never_a_template(content):
    template = ChatTemplate("<{{ messages[0].content }}>{{ name }}{{ tools }}")
    assert template.render([{"role": "user", "content": content}], name=content) == f"<{content}>{content}None"


# `much` and `many` are given at rendering: a product of constants would be computed by the compiler, at the start.
MUCH, MANY = 10**9, 99_999
BOMBS = [
    "{% for a in range(many) %}{% for b in range(many) %}{% endfor %}{% endfor %}",
    "{{ 'x' * much }}",
    "{{ (9 + many) ** much }}",
    "{% for a in range(many) %}{% for b in range(many) %}x{% endfor %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=9) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ [1] * much }}",
    "{{ ('%' ~ much ~ 'd') % 1 }}",
    "{{ ('{:>' ~ much ~ '}').format(1) }}",
    "{{ ('%' ~ much ~ 'd') | format(1) }}",
    "{{ 'x' | center(much) }}",
    "{{ 'x'.ljust(much) }}",
    "{{ 'x'.zfill(much) }}",
    "{{ ('\n' * many) | indent(many, blank=True) }}",
    "{{ ('x' * many).replace('x', 'y' * many) }}",
    "{{ ','.join(['z' * many] * many) }}",
    "{{ lipsum(n=many, max=many) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for a in [[]] recursive %}{{ loop([[], []]) }}{% endfor %}",
    "{{ range(many) | map('string') | map('center', many) | join }}",
    "{{ ((range(many) | list) * many) | sort | tojson }}",
    "{{ ('x ' * (many * 999)) | wordwrap(1) | title }}",
    "{{ (1, 2) * much }}",
]


@pytest.mark.parametrize(
    "bombs", [BOMBS[2:3], pytest.param(BOMBS, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])], ids=["some", "all"]
)
def test_an_endless_template_is_ended_and_the_next_is_answered(bombs):
    for source in bombs:
        renderer = TemplateRenderer(Templates({"default": "{% if much %}" + source + "{% endif %}fine"}))

        def ask(much: int, renderer: TemplateRenderer = renderer) -> str:
            messages, values = [{"role": "user", "content": "hello"}], {"much": much, "many": MANY}
            return renderer.render_now(TemplateInput(messages, None, True, False, values))

        try:
            with pytest.raises(InvalidRequest):
                print(source, len(ask(MUCH)))
            assert ask(0) == "fine"
        finally:
            renderer.close()

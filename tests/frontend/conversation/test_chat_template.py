"""Chat templates: the helpers that models rely on, the sandbox, and the texts of refusals."""

import json
from pathlib import Path

import pytest

from paged_serve.frontend.conversation.chat_template import ChatTemplate
from paged_serve.frontend.conversation.conversation import conversation_of, template_input
from paged_serve.frontend.conversation.model_files import model_template
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import ConfigError, InvalidRequest

HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': 'é<b>'} | tojson }}", '{"a": "é<b>"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a\n  {% if true %}\nb\n  {% endif %}\n", "a\nb\n"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ missing }}", "<s>hello"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ enable_thinking }}{{ add_generation_prompt }}{{ tools }}", "FalseTrueNone"),
    ],
)
def test_templates_find_the_helpers_they_expect(source, expected):
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO, enable_thinking=False) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if xml_tools %}{{ xml_tools[0].name }}{% endif %}", "f"),
        ("{{ (xml_tools or tools)[0].name }}{{ xml_tools is defined }}", "fFalse"),
        ("{{ tools[0].name }}", "f"),
        ("{% for tool in python_tools or [] %}{{ tool.name }}{% endfor %}", ""),
    ],
)
def test_tools_have_the_name_that_the_template_reads(source, expected):
    assert ChatTemplate(source).render(HELLO, tools=[{"name": "f"}]) == expected


ANSWER = {"role": "assistant", "content": "The end "}


@pytest.mark.parametrize(
    ("source", "message", "expected"),
    [
        ("<{{ messages[-1].role }}>{{ messages[-1].content }}<end>", ANSWER, "<assistant>The end "),
        ("<{{ messages[-1].role }}>{{ messages[-1].content | trim }}<end>\n", ANSWER, "<assistant>The end"),
        ("{{ messages[-1].content }} The end of the talk", ANSWER, "The end "),
        ("{{ messages[-1].content.split('</think>')[-1] }}!", ANSWER, "The end "),
        (
            "{{ messages[-1].content[0].text }}!",
            {**ANSWER, "content": [{"type": "text", "text": "The end "}]},
            "The end ",
        ),
        (">{{ messages[-1].content }}!", {**ANSWER, "content": ""}, ">"),
    ],
)
def test_a_prompt_may_end_within_the_last_message(source, message, expected):
    messages = [*HELLO, message]
    assert ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True) == expected
    assert messages == [*HELLO, message]


@pytest.mark.parametrize(
    ("source", "last", "words"),
    [
        ("{{ messages[0].content }}", {"content": "x"}, "does not show the last message"),
        ("{{ messages[-1].content }}", {"content": None}, "whose content is text"),
        ("{{ messages[-1].content[0].text }}", {"content": []}, "whose content is text"),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(source, last, words):
    with pytest.raises(InvalidRequest, match=words):
        ChatTemplate(source).render([HELLO[0], {"role": "assistant", **last}], continue_final_message=True)


def test_a_template_receives_the_time_that_it_is_rendered_for():
    template = ChatTemplate(
        "{{ strftime_now('%Y') }}{% macro year() %}{{ strftime_now('%y') }}{% endmacro %}{{ year() }}"
    )
    assert template.render(HELLO, moment=1_000_000_000.0) == "200101"


def said(role: str, content: object) -> dict:
    return {"role": role, "content": content}


SHOWN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
DROPS = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ m.content }}"
    "{% endif %}{% endfor %}"
)
S, U, A, TOOL = said("system", "s"), said("user", "u"), said("assistant", "a"), said("tool", "t")


@pytest.mark.parametrize("source", [ONE_SYSTEM, DROPS])
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([S, U], "<system>s<user>u"),
        ([S, S, U], "<system>s\ns<user>u"),
        ([U, A, S, U], "<user>u<assistant>a<user>s\nu"),
        ([U, A, S, S, U, A], "<user>u<assistant>a<user>s\ns\nu<assistant>a"),
        ([S, U, S], "<system>s<user>u\ns"),
        ([U, S, A], "<user>u\ns<assistant>a"),
        ([U, A, TOOL, S], "<user>u<assistant>a<tool>t<user>s"),
    ],
)
def test_late_system_messages_join_user_messages_if_the_template_does_not_render_them(source, messages, expected):
    assert ChatTemplate(source).render(messages) == expected
    assert ChatTemplate(SHOWN).render(messages) == "".join(f"<{each['role']}>{each['content']}" for each in messages)


LAST_SYSTEM = (
    "{% set ns = namespace(system='') %}{% for m in messages if m.role == 'system' %}{% set ns.system = m.content %}"
    "{% endfor %}<system>{{ ns.system }}{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}"
)


def test_no_system_message_is_lost_in_a_template_that_renders_the_last_one():
    assert (
        ChatTemplate(LAST_SYSTEM).render([S, said("system", "r"), U, A, S, U])
        == "<system>s\nr<user>u<assistant>a<user>s\nu"
    )


KNOWS_DEVELOPER = "{% for m in messages %}<{{ 'dev' if m.role == 'developer' else m.role }}>{{ m.content }}{% endfor %}"
FIRST_OF_BOTH = (  # as gpt-oss
    "<{{ 'dev' if messages[0].role in ['system', 'developer'] }}>{{ messages[0].content }}"
    "{% for m in messages if m.role == 'user' %}<user>{{ m.content }}{% endfor %}"
)
IGNORES_SYSTEM = SHOWN.replace("messages", "messages if m.role != 'system'")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (KNOWS_DEVELOPER, "<system>s<dev>d<user>u"),
        (FIRST_OF_BOTH, "<dev>s\nd<user>u"),
        (SHOWN, "<system>s<system>d<user>u"),
        (ONE_SYSTEM, "<system>s\nd<user>u"),
        (DROPS, "<system>s\nd<user>u"),
        (LAST_SYSTEM, "<system>s\nd<user>u"),
        (IGNORES_SYSTEM, "<developer>d<user>u"),
    ],
)
def test_a_developers_message_is_a_system_message_unless_the_template_has_a_form_for_it(source, expected):
    assert ChatTemplate(source).render([S, said("developer", "d"), U]) == expected


def test_a_late_system_message_may_have_parts():
    parts = [{"type": "text", "text": "p"}]
    template = ChatTemplate(ONE_SYSTEM.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}"))
    assert template.render([U, said("system", parts), A]) == "<user>up<assistant>a"


def test_a_template_may_refuse_the_messages_with_its_own_text():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate") as refused:
        template.render(HELLO)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content }}",
        "{{ 1 // 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_forbidden_or_failing_template_operation_is_an_error_of_the_request(source):
    with pytest.raises(InvalidRequest, match="cannot render these messages"):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'Functions: ' + functions }}", "'functions' is undefined"),
        ("{{ messages[0].name | trim }}{{ messages[0].name.x }}", "has no attribute 'name'"),
        ("{% set ids = [] %}{{ ids.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% for tool in tools %}{% endfor %}", r"TypeError\); .*whether the template demands tools"),
    ],
)
def test_the_error_of_a_failing_template_says_what_is_missing(source, reason):
    with pytest.raises(InvalidRequest, match=f"cannot render these messages.*{reason}"):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize("sent", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("read", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_is_rendered_under_any_name_that_a_template_reads(sent, read):
    given = template_input(
        *conversation_of({"messages": [{"role": "assistant", "content": "4", sent: "Two and two."}]}), {}
    )
    assert ChatTemplate(f"{{{{ messages[0].{read} }}}}").render(given.messages) == "Two and two."


def test_a_broken_template_stops_the_start():
    with pytest.raises(ConfigError, match="'default' does not compile"):
        ChatTemplate("{% if %}")


@pytest.fixture
def tokenizer(tmp_path) -> Tokenizer:
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []},
                "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            }
        )
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    return Tokenizer(str(tmp_path))


def test_the_template_comes_from_the_flag_then_the_file_then_the_config(tmp_path: Path, tokenizer):
    assert model_template(str(tmp_path), tokenizer) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert model_template(str(tmp_path), tokenizer).sources == {"default": "processor"}
    config = {"chat_template": [{"name": "default", "template": "config"}, {"name": "tool_use", "template": "tool"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    def template_of(override: str = "") -> ChatTemplate:
        found = model_template(str(tmp_path), tokenizer, override)
        return ChatTemplate(found.sources, found.variables)

    template = template_of()
    assert (template.render(HELLO), template.render(HELLO, tools=[{"type": "function"}])) == ("config", "tool")
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert template_of().render(HELLO) == "file <s>"
    (tmp_path / "mine.jinja").write_text("mine")
    assert template_of(str(tmp_path / "mine.jinja")).render(HELLO) == "mine"
    for path in (str(tmp_path / "none.jinja"), "a\0b", "caf\udce9"):
        with pytest.raises(ConfigError, match=f"chat template {path} cannot be read"):
            model_template(str(tmp_path), tokenizer, path)


@pytest.mark.parametrize("entry", ["default", {"name": "default"}, ["default", "{{ messages }}"]])
def test_a_list_of_anything_but_named_templates_is_refused(entry, tmp_path: Path, tokenizer):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [entry]}))
    with pytest.raises(ConfigError, match=r"tokenizer_config.json: chat_template must be a string or a list of"):
        model_template(str(tmp_path), tokenizer)


def test_documents_choose_the_template_named_rag():
    template = ChatTemplate({"default": "plain", "tool_use": "tools", "rag": "{{ documents[0].text }}"})
    documents, tools = [{"text": "sea"}], [{"name": "f"}]
    assert template.render(HELLO, documents=documents) == "sea"
    assert (template.render(HELLO), template.render(HELLO, tools=tools)) == ("plain", "tools")

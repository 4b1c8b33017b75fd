"""Published templates with tools are rendered as by transformers' apply_chat_template, over HTTP and in LLM."""

from typing import Any

import msgspec
import pytest

from paged_serve.frontend.conversation.chat_template import ChatTemplate
from paged_serve.frontend.conversation.conversation import TemplateInput, template_input
from paged_serve.frontend.conversation.strict_json import decode_body
from paged_serve.frontend.http.openai.request.schemas import ChatCompletionRequest
from paged_serve.protocol.errors import InvalidRequest

from .chat_template_cases import (
    CASES,
    MOMENT,
    TEMPLATES,
    VARIABLES,
    conversation_input,
    expected,
    rendered_by_transformers,
    with_written_arguments,
)

EXPECTED = expected()


def rendered(template: ChatTemplate, given: TemplateInput) -> str | None:
    try:
        return template.render(
            given.messages,
            tools=given.tools,
            add_generation_prompt=given.add_generation_prompt,
            moment=MOMENT,
            **given.kwargs,
        )
    except InvalidRequest:
        return None


def over_http(case: dict[str, Any]) -> TemplateInput:
    raw = msgspec.json.encode(case)
    body, _ = decode_body(ChatCompletionRequest, raw)
    return template_input(body, raw, {})


@pytest.mark.parametrize("name", TEMPLATES)
def test_http_and_llm_render_what_transformers_renders(name):
    template = ChatTemplate(TEMPLATES[name], VARIABLES)
    for title, case in CASES.items():
        for way, given in (
            ("http", over_http(case)),
            ("llm", conversation_input(case["messages"], case.get("tools"))),
            ("written arguments", over_http(with_written_arguments(case))),
        ):
            found = rendered(template, given)
            if EXPECTED[name][title] is not None:
                assert found == EXPECTED[name][title], f"{title} by {way}"
            elif title == "called":  # clients send back a null content, on which some templates fail in transformers
                assert "Köln" in found
                assert "temperature" in found
            else:
                assert found is None


def test_all_templates_but_one_render_tools():
    assert len(TEMPLATES) >= 12
    with_tools = [name for name, found in EXPECTED.items() if "get_weather" in (found["asked"] or "")]
    assert len(with_tools) == len(TEMPLATES) - 1, "all but one, which renders only calls"
    assert sum(text is not None for found in EXPECTED.values() for text in found.values()) > 100


@pytest.mark.nightly
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_stored_renderings_are_those_of_transformers(name):
    assert {title: rendered_by_transformers(name, case) for title, case in CASES.items()} == EXPECTED[name]


@pytest.mark.parametrize(
    ("name", "joined"), [("vllm-llama3.2_json", "ab"), ("vllm-hermes", "a\nb"), ("gpt-oss", "a\nb")]
)
def test_parts_are_joined_as_the_template_reads_them(name, joined):
    template = ChatTemplate(TEMPLATES[name], VARIABLES)
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    text = [{"role": "user", "content": joined}]
    assert rendered(template, conversation_input(parts, None)) == rendered(template, conversation_input(text, None))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for p in messages[0].content %}{{ p.text }}{% endfor %}", "ab|ab"),
        ("{% if messages[0].content is string %}{{ messages[0].content }}{% else %}"
         "{% for p in messages[0].content %}{{ p.text }}{% endfor %}{% endif %}", "ab|ab"),
        ("{{ messages[0].content }}", "a\nb|ab"),
        ("{{ messages[0].content + '' }}", "a\nb|ab"),
    ],
)  # fmt: skip
def test_a_template_receives_contents_in_the_form_that_it_reads(source, expected):
    template = ChatTemplate(source)
    contents = ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")
    found = [rendered(template, conversation_input([{"role": "user", "content": c}], None)) for c in contents]
    assert "|".join(found) == expected

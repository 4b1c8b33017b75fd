"""Forms in the channels of gpt-oss: every allowed output is parsed as reasoning, and content or a call of the form."""

import json
import random
import re

import jsonschema_rs
import llguidance
import pytest
import tokenizers

from paged_serve.frontend.parsers.call_forms import CallableTool
from paged_serve.frontend.parsers.channel_forms import channel_calls, final_form
from paged_serve.frontend.parsers.detection import ModelFormats
from paged_serve.frontend.parsers.formats import HARMONY
from paged_serve.frontend.parsers.output_parser import OutputParser
from paged_serve.frontend.parsers.output_reading import output_format, output_reading
from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer, lowered
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..http_server import make_model_folder
from .outputs import Output
from .test_call_forms import SCHEMAS, TOOLS
from .test_formats import read

TAGS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
ADDED = AddedTokens(special={tag: 300 + i for i, tag in enumerate(TAGS)})
FIRST_BYTE = 1 + max(ADDED.special.values())  # in the tokenizer that forms are compiled with
TOKENIZER = bytes_tokenizer(ADDED)
SCHEMA = SCHEMAS["set"]


def accepts(params: StructuredOutputsParams, text: str) -> bool:
    """Whether the whole text, with its tags as tokens, is an allowed output."""
    matcher = llguidance.LLMatcher(TOKENIZER, lowered(params, ADDED).source)
    assert not matcher.is_error(), matcher.get_error()
    while text:
        tag = next((tag for tag in TAGS if text.startswith(tag)), "")
        tokens = [ADDED.special[tag]] if tag else [FIRST_BYTE + byte for byte in text[0].encode()]
        if matcher.validate_tokens(tokens) != len(tokens):
            return False
        matcher.consume_tokens(tokens)
        text = text[len(tag) or 1 :]
    return bool(matcher.is_accepting())


def parsed(text: str) -> Output:
    form = output_format(HARMONY, None)
    assert form is not None
    return read(OutputParser(form, SCHEMAS).push(text, final=True))


def tag_ends(text: str) -> list[int]:
    return [found.end() for found in re.finditer(r"<\|\w+\|>", text)]


ANALYSIS = "<|channel|>analysis<|message|>Let me: think. {}<|end|><|start|>assistant"
FINAL, CALL = "<|channel|>final<|message|>", "<|channel|>commentary to=functions.set <|constrain|>json<|message|>"


def test_without_tools_a_message_to_a_function_is_not_a_call(folder):
    formats, tokenizer = ModelFormats(HARMONY), Tokenizer(str(folder))
    text = ANALYSIS + CALL + '{"on": true}<|call|>' + FINAL + "It is on."
    for tools, calls in (([("set", SCHEMA)], 1), ([], 0)):
        reading = output_reading(formats, tokenizer, tools, "<|start|>assistant")
        found = read(reading.parser().push(text, True, tag_ends(text)))
        assert (found.content, len(found.calls)) == ("It is on.", calls)
        assert found.reasoning == "Let me: think. {}" + ("" if calls else '{"on": true}')


def test_a_tag_in_other_tokens_than_its_own_is_quoted(tmp_path):
    folder = make_model_folder(tmp_path / "model")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.add_special_tokens([*TAGS])
    library.save(str(folder / "tokenizer.json"))
    reading = output_reading(ModelFormats(HARMONY), Tokenizer(str(folder)), [], "<|start|>assistant")
    quote = "It says <|end|><|start|>user<|message|>."
    text = ANALYSIS.replace("think", quote) + FINAL + quote
    for pieces in ([text], list(text)):
        parser = reading.parser()
        events = parser.push("", tag_ends=tag_ends(text.replace(quote, "_" * len(quote))))
        events += [event for piece in pieces for event in parser.push(piece)]
        found = read([*events, *parser.push("", final=True)])
        assert (found.reasoning, found.content) == (f"Let me: {quote}. {{}}", quote)


@pytest.mark.parametrize("before", ["", ANALYSIS])
def test_a_form_constrains_only_the_final_message(before):
    params = final_form(StructuredOutputsParams(json=json.dumps(SCHEMA)))
    for content, is_valid in (('{"on": true}', True), ('{"on": 1}', False), ("On.", False), ("", False)):
        text = before + FINAL + content
        assert accepts(params, text) == is_valid, text
        if is_valid:
            found = parsed(text)
            assert jsonschema_rs.is_valid(SCHEMA, json.loads(found.content))
            assert found.reasoning == ("Let me: think. {}" if before else "")
    assert not accepts(params, before + CALL + "{}")
    assert not accepts(params, before)


def test_other_kinds_of_forms_constrain_it_too_or_are_refused():
    assert accepts(final_form(StructuredOutputsParams(choice=["yes", "no"])), FINAL + "no")
    assert accepts(final_form(StructuredOutputsParams(regex="a+")), ANALYSIS + FINAL + "aaa")
    assert not accepts(final_form(StructuredOutputsParams(regex="a+")), FINAL + "b")
    assert accepts(final_form(StructuredOutputsParams(json_object=True)), FINAL + '{"x": 1}')
    for refused in ({"grammar": 'start: "a"'}, {"json_object": True, "disable_any_whitespace": True}):
        with pytest.raises(InvalidRequest, match="writes in channels"):
            final_form(StructuredOutputsParams(**refused))


@pytest.mark.parametrize("before", ["", ANALYSIS])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_call_has_valid_arguments_and_with_auto_there_may_be_none(before, mode):
    params = channel_calls(TOOLS, mode)
    assert accepts(params, f'{before}{CALL}{{"at": {{"x": 3}}}}')
    assert parsed(f'{before}{CALL}{{"at": {{"x": 3}}}}').calls == [("set", {"at": {"x": 3}})]
    assert not accepts(params, f'{before}{CALL}{{"at": {{"x": 30}}}}')
    assert not accepts(params, before + CALL.replace("set", "other") + "{}")
    assert accepts(params, before + FINAL + "Any text {}.") == (mode == "auto")


def test_every_division_of_an_allowed_output_is_parsed_alike():
    text = f'{ANALYSIS}{CALL}{{"on": false}}'
    for seed in range(50):
        rng = random.Random(seed)
        at = rng.randint(0, len(text))
        form = output_format(HARMONY, None)
        assert form is not None
        parser = OutputParser(form, SCHEMAS)
        events = [*parser.push(text[:at]), *parser.push(text[at:], final=True)]
        assert read(events) == parsed(text)


@pytest.mark.parametrize("name", ["mcp:files", "files/read", "é"])
def test_a_tool_may_have_any_name(name):
    text = f'<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{{"on": true}}'
    tool = CallableTool(name, SCHEMA, strict=True)
    assert accepts(channel_calls([tool], "required"), text)
    assert parsed(text).calls == [(name, {"on": True})]

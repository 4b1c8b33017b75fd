"""Forms of outputs in channels: every allowed output is parsed as reasoning, and content or calls of the form."""

import json
import random
import re
from dataclasses import dataclass

import jsonschema_rs
import llguidance
import pytest
import tokenizers

from paged_serve.frontend.parsers.call_forms import CallableTool, calls_form
from paged_serve.frontend.parsers.channel_forms import ChannelForm, channel_calls, final_form
from paged_serve.frontend.parsers.detection import ModelFormats
from paged_serve.frontend.parsers.families.channels import FUNCTIONARY_V32, HARMONY, MUSE, SOLAR_OPEN
from paged_serve.frontend.parsers.families.parameter_calls import DEEPSEEK_V4
from paged_serve.frontend.parsers.formats import ToolFormat
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

TAGS = (
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    *("<|begin|>", "<|think|>", "<|content|>", "<|tool_calls|>", "<|calls|>", "<|flush|>"),
    *("｜DSML｜", "<|eom|>", "<|eot|>"),
    *("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
)
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


@dataclass(frozen=True)
class Channels:
    """The texts of one family."""

    format: ToolFormat
    reasoning: str
    final: str
    call: str  # of the tool set
    call_end: str = ""

    @property
    def form(self) -> ChannelForm:
        assert isinstance(self.format.form, ChannelForm)
        return self.format.form

    def parsed(self, text: str) -> Output:
        form = output_format(self.format, None)
        assert form is not None
        return read(OutputParser(form, SCHEMAS).push(text, final=True))


def tag_ends(text: str) -> list[int]:
    return [found.end() for found in re.finditer(r"<\|[\w:]+\|>", text)]


GPT_OSS = Channels(
    HARMONY,
    "<|channel|>analysis<|message|>Let me: think. {}<|end|><|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>commentary to=functions.set <|constrain|>json<|message|>",
)
SOLAR = Channels(
    SOLAR_OPEN,
    "<|think|>Let me: think. {}<|end|><|begin|>assistant",
    "<|content|>",
    "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>set<|tool_call:args|>",
    "<|tool_call:end|>",
)
by_family = pytest.mark.parametrize("family", [GPT_OSS, SOLAR], ids=["gpt-oss", "solar"])


@by_family
def test_without_tools_a_message_to_a_function_is_not_a_call(folder, family):
    formats, tokenizer = ModelFormats(family.format), Tokenizer(str(folder))
    ends = "<|call|>" if family is GPT_OSS else "<|tool_call:end|><|calls|><|begin|>assistant"
    text = family.reasoning + family.call + '{"on": true}' + ends + family.final + "It is on."
    for tools, calls in (([("set", SCHEMA)], 1), ([], 0)):
        reading = output_reading(formats, tokenizer, tools, family.form.next)
        found = read(reading.parser().push(text, True, tag_ends(text)))
        assert (found.content, len(found.calls)) == ("It is on.", calls)
        assert found.reasoning.startswith("Let me: think. {}")
        assert ('{"on": true}' in found.reasoning) == (not calls)


@by_family
def test_a_tag_in_other_tokens_than_its_own_is_quoted(tmp_path, family):
    folder = make_model_folder(tmp_path / "model")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.add_special_tokens([*TAGS])
    library.save(str(folder / "tokenizer.json"))
    reading = output_reading(ModelFormats(family.format), Tokenizer(str(folder)), [], family.form.next)
    quote = "It says <|end|><|start|>user<|message|><|begin|>assistant<|content|>."
    text = family.reasoning.replace(": think", f": {quote}") + family.final + quote
    for pieces in ([text], list(text)):
        parser = reading.parser()
        events = parser.push("", tag_ends=tag_ends(text.replace(quote, "_" * len(quote))))
        events += [event for piece in pieces for event in parser.push(piece)]
        found = read([*events, *parser.push("", final=True)])
        assert (found.reasoning, found.content) == (f"Let me: {quote}. {{}}", quote)


@by_family
@pytest.mark.parametrize("reasons", [False, True])
def test_a_form_constrains_only_the_final_message(family, reasons):
    before = family.reasoning if reasons else ""
    params = final_form(family.form, StructuredOutputsParams(json=json.dumps(SCHEMA)))
    for content, is_valid in (('{"on": true}', True), ('{"on": 1}', False), ("On.", False), ("", False)):
        text = before + family.final + content
        assert accepts(params, text) == is_valid, text
        if is_valid:
            found = family.parsed(text)
            assert jsonschema_rs.is_valid(SCHEMA, json.loads(found.content))
            assert found.reasoning == ("Let me: think. {}" if before else "")
    assert not accepts(params, before + family.call + "{}" + family.call_end)
    assert not accepts(params, before)


@by_family
def test_other_kinds_of_forms_constrain_it_too_or_are_refused(family):
    assert accepts(final_form(family.form, StructuredOutputsParams(choice=["yes", "no"])), family.final + "no")
    params = final_form(family.form, StructuredOutputsParams(regex="a+"))
    assert accepts(params, family.reasoning + family.final + "aaa")
    assert not accepts(params, family.final + "b")
    assert accepts(final_form(family.form, StructuredOutputsParams(json_object=True)), family.final + '{"x": 1}')
    for refused in ({"grammar": 'start: "a"'}, {"json_object": True, "disable_any_whitespace": True}):
        with pytest.raises(InvalidRequest, match="writes in channels"):
            final_form(family.form, StructuredOutputsParams(**refused))


@by_family
@pytest.mark.parametrize("reasons", [False, True])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_call_has_valid_arguments_and_with_auto_there_may_be_none(family, reasons, mode):
    before = family.reasoning if reasons else ""
    params = channel_calls(family.form, TOOLS, mode, parallel=True)
    text = f'{before}{family.call}{{"at": {{"x": 3}}}}{family.call_end}'
    assert accepts(params, text)
    assert family.parsed(text).calls == [("set", {"at": {"x": 3}})]
    assert not accepts(params, text.replace("3", "30"))
    assert not accepts(params, text.replace("set", "other"))
    assert accepts(params, before + family.final + "Any text {}.") == (mode == "auto")


@by_family
@pytest.mark.parametrize("parallel", [True, False])
def test_there_may_be_several_calls_if_the_family_and_the_request_allow_it(family, parallel):
    call = f'{family.call}{{"on": true}}{family.call_end}'
    text = call + call.removeprefix(family.form.call.before)
    params = channel_calls(family.form, TOOLS, "required", parallel=parallel)
    assert accepts(params, call)
    assert accepts(params, text) == (parallel and family is SOLAR)
    assert len(family.parsed(text).calls) == 2


@by_family
def test_every_division_of_an_allowed_output_is_parsed_alike(family):
    text = f'{family.reasoning}{family.call}{{"on": false}}{family.call_end}'
    for seed in range(50):
        rng = random.Random(seed)
        at = rng.randint(0, len(text))
        form = output_format(family.format, None)
        assert form is not None
        parser = OutputParser(form, SCHEMAS)
        events = [*parser.push(text[:at]), *parser.push(text[at:], final=True)]
        assert read(events) == family.parsed(text)


@by_family
@pytest.mark.parametrize("name", ["mcp:files", "files/read", "é"])
def test_a_tool_may_have_any_name(family, name):
    text = f'{family.call.replace("set", name)}{{"on": true}}{family.call_end}'
    tool = CallableTool(name, SCHEMA, strict=True)
    assert accepts(channel_calls(family.form, [tool], "required", parallel=False), text)
    assert family.parsed(text).calls == [(name, {"on": True})]


def test_a_text_ends_with_a_tag_that_has_a_token_within():
    tool = CallableTool("f", {"properties": {"x": {"type": "string"}}, "required": ["x"]}, strict=True)
    form = calls_form(DEEPSEEK_V4.form, [tool], "required", parallel=False)
    params = StructuredOutputsParams(structural_tag=json.dumps(form))
    inner = '<｜DSML｜parameter name="x" string="true">a </b>.</｜DSML｜parameter>\n</｜DSML｜invoke>'
    text = f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n{inner}\n</｜DSML｜tool_calls>'
    assert accepts(params, text)
    assert not accepts(params, text.replace("</｜DSML｜parameter>", "<｜DSML｜parameter>"))
    assert not accepts(params, text.replace("</｜DSML｜parameter>", "</｜DSML｜invoke>"))


def test_functionary_writes_calls_or_an_answer_without_reasoning():
    family = Channels(FUNCTIONARY_V32, "", "all\n", "set\n")
    call = 'set\n{"on": true}'
    for mode, parallel in (("auto", True), ("required", False)):
        params = channel_calls(family.form, TOOLS, mode, parallel=parallel)
        assert accepts(params, call)
        assert accepts(params, f"{call}>>>now\n{{}}") == parallel
        assert accepts(params, "all\nHello. >>>") == (mode == "auto")
        assert not accepts(params, "other\n{}")
    assert family.parsed(f"{call}>>>now\n{{}}").calls == [("set", {"on": True}), ("now", {})]
    assert accepts(final_form(family.form, StructuredOutputsParams(json=json.dumps(SCHEMA))), 'all\n{"on": true}')


@pytest.mark.parametrize("text", ["Sure\nhere it is", "Hello", ">>> x = 1\n>>> now\n", "other\n{}"])
@pytest.mark.parametrize("begin", ["", "all\n"])
def test_only_a_known_tool_is_a_recipient_of_functionary(begin, text):
    form = output_format(FUNCTIONARY_V32, None)
    for pieces in ([begin + text], list(begin + text)):
        parser = OutputParser(form, {"get": {}})
        events = [event for piece in pieces for event in parser.push(piece)]
        found = read([*events, *parser.push("", final=True)])
        assert (found.content, found.calls) == (text, [])


def test_muse_writes_arguments_one_by_one_in_its_channels():
    family = Channels(MUSE, " to=self<|message|>Hm.<|eom|><|start|>assistant", " to=user<|message|>", "")
    invoke = '<atem:invoke name="set">\n<atem:parameter name="on">true</atem:parameter>\n</atem:invoke>'
    call = f" to=set<|message|><atem:function_calls>\n{invoke}\n</atem:function_calls>"
    two = f"{call}{family.form.end}{family.form.next}{call}"
    for parallel in (True, False):
        params = channel_calls(family.form, TOOLS, "required", parallel=parallel)
        assert accepts(params, family.reasoning + call)
        assert accepts(params, two) == parallel
        assert not accepts(params, call.replace("true", "1"))
        assert not accepts(params, family.final + "Hello.")
    assert accepts(channel_calls(family.form, TOOLS, "auto", parallel=True), family.final + "Hello.")
    assert family.parsed(family.reasoning + two).calls == [("set", {"on": True})] * 2

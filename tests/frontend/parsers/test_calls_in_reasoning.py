"""A call that begins before reasoning has ended: its tag ends the reasoning, if it is a token of its own."""

import pytest
import tokenizers

from paged_serve.frontend.http.openai.chat_choice import ReasoningCount
from paged_serve.frontend.parsers.detection import ModelFormats
from paged_serve.frontend.parsers.families.channels import FUNCTIONARY_V32
from paged_serve.frontend.parsers.families.parameter_calls import GEMMA4, MINIMAX_M2
from paged_serve.frontend.parsers.families.reasoning import THINK, THOUGHT_CHANNEL
from paged_serve.frontend.parsers.output_reading import output_reading
from paged_serve.frontend.parsers.thinking import with_thinking
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..http_server import make_model_folder
from .test_formats import read

TAGS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<think>", "</think>", "<minimax:tool_call>")
TOOLS = [("now", {})]
GEMMA, MINIMAX = ModelFormats(GEMMA4, THOUGHT_CHANNEL), ModelFormats(MINIMAX_M2, THINK)
INVOKED = '<minimax:tool_call>\n<invoke name="now">\n</invoke></minimax:tool_call>'
OUTPUTS = {
    "gemma4": (GEMMA, "", "<|channel>thought\nHm ", "<|tool_call>call:now{}<tool_call|>"),
    "minimax_m2": (MINIMAX, "<think>\n", "Hm ", INVOKED),
}
EACH = pytest.mark.parametrize(("formats", "prompt", "thought", "call"), OUTPUTS.values(), ids=OUTPUTS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = make_model_folder(tmp_path_factory.mktemp("calls") / "model")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.add_tokens([*TAGS])
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer(str(folder))


def parsed(reading, tokenizer, text, *, quoted=""):
    """The output whose tags are tokens of their own, but for those in `quoted`."""
    where = text.find(quoted) if quoted else len(text)
    tags = [tag for tag in TAGS if tokenizer.token_id(tag) in reading.tag_tokens(tokenizer)]
    ends = [at + len(tag) for tag in tags for at in range(len(text)) if text.startswith(tag, at)]
    ends = [end for end in ends if not where < end <= where + len(quoted)]
    results = []
    for pieces in ([text], list(text)):
        parser = reading.parser()
        events = parser.push("", tag_ends=ends)
        events += [event for piece in pieces for event in parser.push(piece)]
        results.append(read([*events, *parser.push("", final=True)]))
    assert results[0] == results[1]
    return results[0]


@EACH
def test_the_tag_of_a_call_ends_reasoning(formats, prompt, thought, call, tokenizer):
    reading = output_reading(formats, tokenizer, TOOLS, prompt)
    found = parsed(reading, tokenizer, thought + call)
    assert (found.reasoning, found.content, found.calls) == ("Hm", "", [("now", {})])


@EACH
def test_a_quoted_tag_and_one_without_a_call_are_reasoning(formats, prompt, thought, call, tokenizer):
    reading = output_reading(formats, tokenizer, TOOLS, prompt)
    tag, end = call[: call.index(">") + 1], formats.reasoning.end
    found = parsed(reading, tokenizer, f"{thought}{call}.{end}Yes.", quoted=call)
    assert (found.reasoning, found.content, found.calls) == (f"Hm {call}.", "Yes.", [])
    found = parsed(reading, tokenizer, f"{thought}{tag} is a tag.{end}Yes.")
    assert (found.reasoning, found.content, found.calls) == (f"Hm {tag} is a tag.", "Yes.", [])


@EACH
def test_without_tools_a_tag_is_reasoning(formats, prompt, thought, call, tokenizer):
    reading = output_reading(formats, tokenizer, [], prompt)
    found = parsed(reading, tokenizer, thought + call)
    assert (found.reasoning, found.calls) == (f"Hm {call}", [])


@EACH
def test_tokens_of_the_call_are_no_reasoning_tokens(formats, prompt, thought, call, tokenizer):
    reading = output_reading(formats, tokenizer, TOOLS, prompt)
    before = tokenizer.encode(thought, add_special_tokens=False)
    tokens = tokenizer.encode(thought + call, add_special_tokens=False)
    assert tokens[: len(before)] == before
    for step in (1, len(tokens)):
        count = ReasoningCount.of(reading, tokenizer)
        for at in range(0, len(tokens), step):
            count.add(tokens[at : at + step])
        assert count.num_tokens == len(before)


def test_a_budget_names_the_tokens_of_calls_and_is_refused_without_reasoning(tokenizer):
    params = SamplingParams(thinking_token_budget=4)
    thinking = with_thinking(params, MINIMAX, tokenizer, [], calls=["<minimax:tool_call>", "<function="]).thinking
    assert thinking.calls == (tokenizer.token_id("<minimax:tool_call>"),)
    with pytest.raises(InvalidRequest, match="no known reasoning tags"):
        with_thinking(params, ModelFormats(FUNCTIONARY_V32), tokenizer, [])

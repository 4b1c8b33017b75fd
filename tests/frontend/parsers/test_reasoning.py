"""Reasoning at the beginning of an output, its label, and the tags around the answer after it."""

import pytest

from paged_serve.frontend.parsers.families.reasoning import REASONING_STEPS, THINK, THINK_OF_COHERE, THOUGHT_CHANNEL
from paged_serve.frontend.parsers.output_reading import output_format

from .test_formats import FORMATS, events_of, read


@pytest.mark.parametrize(
    ("begins", "text", "reasoning", "content"),
    [
        (False, "<think>a\n</think>\n\nb", "a", "b"),
        (False, "b <think>a</think>", "", "b <think>a</think>"),
        (False, "\n b", "", "\n b"),
        (False, "<thi", "", "<thi"),
        (True, "a</think>b", "a", "b"),
        (True, "<think>\na</think>b", "a", "b"),
        (True, "a b ", "a b", ""),
        (True, "", "", ""),
        (True, "</think>b", "", "b"),
    ],
)
def test_reasoning_is_at_the_beginning_only(begins, text, reasoning, content):
    form = output_format(None, THINK, is_open=begins)
    assert form is not None
    for pieces in ([text], list(text)):
        found = read(events_of(form, pieces))
        assert (found.reasoning, found.content) == (reasoning, content)


def test_the_label_of_gemmas_channel_is_no_reasoning():
    form = output_format(FORMATS["gemma4"], THOUGHT_CHANNEL)
    assert form is not None
    for text, reasoning in [
        ("thought\nHm, thoughts.", "Hm, thoughts."),
        ("thoughtful", "thoughtful"),
        ("thought\n", ""),
    ]:
        whole = f"<|channel>{text}<channel|>Yes.<|tool_call>call:now{{}}<tool_call|>"
        for pieces in ([whole], list(whole)):
            found = read(events_of(form, pieces))
            assert (found.reasoning, found.content, found.calls) == (reasoning, "Yes.", [("now", {})])


STEPS = "Here are my reasoning steps:\na\n[BEGIN FINAL RESPONSE]\n"


@pytest.mark.parametrize("tools", ["cohere", None])
@pytest.mark.parametrize(
    ("reasoning", "text", "found"),
    [
        (THINK_OF_COHERE, "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b c<|END_RESPONSE|>", ("a", "b c")),
        (THINK_OF_COHERE, "<|START_THINKING|><|END_THINKING|><|START_TEXT|>b<|END_TEXT|>", ("", "b")),
        (
            REASONING_STEPS,
            f"{STEPS}b\n[END FINAL",
            ("a", "b\n[END FINAL"),
        ),
        (REASONING_STEPS, f"{STEPS}b\n\n[END FINAL RESPONSE]", ("a", "b")),
    ],
)
def test_tags_around_an_answer_are_not_a_part_of_it(tools, reasoning, text, found):
    form = output_format(None if tools is None else FORMATS[tools], reasoning)
    assert form is not None
    for pieces in ([text], list(text)):
        parts = read(events_of(form, pieces))
        assert (parts.reasoning, parts.content) == found

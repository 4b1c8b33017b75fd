"""A prompt may make a model write anything: reading its output takes time in proportion to its length, no more."""

import time
from collections.abc import Callable, Iterable

import pytest

from paged_serve.frontend.parsers.events import Content
from paged_serve.frontend.parsers.families.json_calls import HERMES
from paged_serve.frontend.parsers.families.reasoning import THINK
from paged_serve.frontend.parsers.output_parser import OutputParser
from paged_serve.frontend.parsers.output_reading import output_format
from paged_serve.frontend.text.detokenizer import Detokenizer
from paged_serve.frontend.text.sequence_text import SequenceText
from paged_serve.frontend.text.stop_strings import StopAutomaton, StopStrings
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..frontend.http_server import make_model_folder

MEGABYTE = 1_000_000
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
OUTPUTS = {  # the text that repeats
    "white space": " ",
    "a call of white space": " ",
    "a call that never ends": "a",
    "calls": CALL,
    "calls that are none": "<tool_call></tool_call>",
    "half tags": "<tool_call",
    "first characters of tags": "<",
    "beginnings": "<tool_call>",
    "ends": "</tool_call>",
    "deep JSON": '<tool_call>{"name":"f","arguments":[[[[',
    "objects that never end": '<tool_call>{"',
    "texts with line breaks": '<tool_call>{"\n',
    "a stop string but for its end": "ab",
}
STOPS = [("ab" * 32)[:63] + chr(65 + i) for i in range(16)]


def output(kind: str, length: int) -> str:
    begin = "<tool_call>" if kind.startswith("a call ") else ""
    return (begin + OUTPUTS[kind] * (length // len(OUTPUTS[kind]) + 1))[:length]


def pieces(text: str, size: int) -> Iterable[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def parse(text: str, size: int) -> tuple[str, int]:
    """(content, number of calls)."""
    parser = OutputParser(output_format(HERMES, THINK), {})
    events = [event for piece in pieces(text, size) for event in parser.push(piece)]
    events += parser.push("", final=True)
    return "".join(event.text for event in events if isinstance(event, Content)), parser.num_calls


def cut(text: str, size: int) -> str:
    stops = StopStrings(STOPS)
    return "".join([stops.push(piece)[0] for piece in pieces(text, size)]) + stops.finish()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer(str(make_model_folder(tmp_path_factory.mktemp("models") / "tiny")))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_a_megabyte_parses_as_its_parts_do(kind):
    text = output(kind, MEGABYTE)
    content, num_calls = parse(text, MEGABYTE)
    assert num_calls == (text.count(CALL.removesuffix("</tool_call>")) if kind == "calls" else 0)
    assert cut(text, MEGABYTE) == text
    short = text[: MEGABYTE // 50]
    assert parse(short, 3) == parse(short, len(short))
    assert cut(short, 3) == short
    if kind != "calls":
        assert content == text


def test_the_states_of_stop_strings_are_shared_by_all_sequences(tokenizer):
    """16 strings of 256 characters for each of 256 sequences would be a million states."""
    params = SamplingParams(stop=tuple(STOPS))
    stops = StopAutomaton(params.stop)
    sequences = [SequenceText(tokenizer, [], params, stops) for _ in range(256)]
    assert {id(sequence._stops._automaton) for sequence in sequences} == {id(stops)}


def seconds(work: Callable[[str, int], object], text: str, size: int) -> float:
    """Processor time of the work: the shortest of five runs, as the others include interruptions."""

    def once() -> float:
        began = time.process_time()
        work(text, size)
        return time.process_time() - began

    return min(once() for _ in range(5))


@pytest.mark.nightly
@pytest.mark.parametrize("work", [parse, cut])
@pytest.mark.parametrize("size", [4, MEGABYTE], ids=["in pieces", "at once"])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_parsing_time_is_linear_in_the_output(kind, size, work):
    quarter, whole = (seconds(work, output(kind, length), size) for length in (MEGABYTE // 4, MEGABYTE))
    assert whole < 8 * quarter + 0.02, "16 times would be quadratic"
    print(f"{kind}, {work.__name__}, size {size}: {1e3 * quarter:.1f} ms, {1e3 * whole:.1f} ms")


@pytest.mark.nightly
def test_a_million_tokens_of_broken_characters_are_decoded_in_linear_time(tokenizer):
    broken = [tokenizer.token_id(char) for char in "ðŁĺð"]  # beginnings of characters of four bytes
    assert None not in broken

    def read(count: int) -> float:
        began, machine = time.process_time(), Detokenizer(tokenizer)
        for i in range(count):
            machine.push(broken[i % 4])
        machine.finish()
        return time.process_time() - began

    quarter, whole = (min(read(count) for _ in range(3)) for count in (MEGABYTE // 4, MEGABYTE))
    assert whole < 8 * quarter


def test_one_delta_may_hold_a_whole_output(tokenizer):
    """So it is for a reader that was away while thousands of tokens came."""
    ids = tokenizer.encode("ab" * 20_000)
    sequence = SequenceText(tokenizer, [], SamplingParams(stop=tuple(STOPS)))
    delta = sequence.push(ids, FinishReason.LENGTH)
    assert delta.text == "ab" * 20_000

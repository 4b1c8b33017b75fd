"""The requests of a benchmark: a seeded random load, or the prompts of a file.

The default load is that of the project's comparisons with other engines: prompts of 32 to 512 tokens, outputs of 16 to
128, seed 0. Its first 64 requests have 16,699 prompt and 4,198 output tokens, whatever the vocabulary.
"""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paged_serve.protocol.errors import ConfigError

TOKEN_IDS = range(300, 31_000)  # random ids come from here and are then folded into the vocabulary
SMALLEST_VOCABULARY = 1000  # assumed for a server that does not report it
WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "night", "point", "home", "water", "room", "mother", "area", "money", "story"),
)

Prompt = list[int] | str | list[dict[str, Any]]  # tokens, a text, or the messages of a conversation


@dataclass(frozen=True, slots=True)
class Lengths:
    """A range of integers, low to high inclusive, to draw lengths from."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """Parse "128" or "32-512". Raises ValueError."""
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
        if not found:
            raise ValueError(f"{text!r} is neither a number nor a range like 32-512")
        low, high = int(found[1]), int(found[2] or found[1])
        if not 1 <= low <= high:
            raise ValueError(f"{text!r} must be at least 1, and a range must not be descending")
        return cls(low, high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of a load."""

    prompt: Prompt
    max_tokens: int


def random_load(
    count: int, inputs: Lengths, outputs: Lengths, *, seed: int, vocab_size: int, prefix_len: int = 0
) -> list[LoadRequest]:
    """Random token prompts, whose lengths depend only on the seed; `prefix_len` shared tokens precede each prompt."""
    draw = random.Random(seed)
    shared = random.Random(-1 - seed)
    prefix = [shared.choice(TOKEN_IDS) % vocab_size for _ in range(prefix_len)]
    requests = []
    for _ in range(count):
        num_inputs, max_tokens = draw.randint(inputs.low, inputs.high), draw.randint(outputs.low, outputs.high)
        tokens = [draw.randrange(TOKEN_IDS.start, TOKEN_IDS.stop) % vocab_size for _ in range(num_inputs)]
        requests.append(LoadRequest(prefix + tokens, max_tokens))
    return requests


def as_text(request: LoadRequest) -> LoadRequest:
    """The request with one word per token, for servers that do not accept tokens."""
    if isinstance(request.prompt, str):
        return request
    words = [WORDS[token % len(WORDS)] for token in request.prompt if isinstance(token, int)]
    return LoadRequest(" ".join(words), request.max_tokens)


class _Line(msgspec.Struct):
    """A line of a prompt file; other fields are ignored."""

    prompt: str | list[Annotated[int, Meta(ge=0)]] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None


def read_load(path: str, count: int, outputs: Lengths, seed: int) -> list[LoadRequest]:
    """The first `count` prompts of a JSONL file, or all if it has fewer. Raises ConfigError that names the line.

    A line has `prompt` (a text or tokens) or `messages`. Without `max_tokens`, the output length is drawn from
    `outputs`.
    """
    draw = random.Random(seed)
    requests = []
    for line in _lines(path, count):
        prompt = line.messages if line.prompt is None else line.prompt
        assert prompt is not None
        requests.append(LoadRequest(prompt, line.max_tokens or draw.randint(outputs.low, outputs.high)))
    return requests


def _line(text: bytes, where: str) -> _Line:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not (line.prompt or line.messages):
        raise ConfigError(f"{where} has neither a prompt nor messages")
    return line


def _lines(path: str, count: int) -> Iterator[_Line]:
    found = 0
    try:
        with open(path, "rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                yield _line(text, f"{path}, line {number}")
                found += 1
                if found == count:
                    return
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if not found:
        raise ConfigError(f"{path} has no prompts")


Pattern = Literal["poisson", "fixed", "burst"]


def arrival_times(count: int, rate: float, pattern: Pattern, seed: int, burst_size: int = 1) -> list[float]:
    """Ascending times in seconds after the start, with `rate` requests per second on average; math.inf: all at once.

    poisson: independent arrivals; fixed: equal intervals; burst: `burst_size` requests at once, at equal intervals.
    """
    if math.isinf(rate):
        return [0.0] * count
    if pattern == "fixed":
        return [index / rate for index in range(count)]
    if pattern == "burst":
        return [index // burst_size * burst_size / rate for index in range(count)]
    draw = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += draw.expovariate(rate)
    return times

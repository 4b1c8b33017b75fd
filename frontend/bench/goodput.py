"""Service-level objectives: which answers were good enough for the person who waited."""

from collections.abc import Callable, Mapping, Sequence

from .timeline import Timeline

MEASURES: dict[str, Callable[[Timeline], float | None]] = {
    "ttft": lambda timeline: timeline.first_token_s,
    "tpot": lambda timeline: timeline.per_token_s,
    "e2el": lambda timeline: timeline.end_to_end_s,
}


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """Seconds by measure, from texts like "ttft:500,tpot:50" in milliseconds. Raises ValueError."""
    objectives = {}
    for text in ",".join(texts).split(",") if texts else []:
        name, _, limit = text.partition(":")
        if name not in MEASURES:
            raise ValueError(f"{text!r} must begin with one of {', '.join(MEASURES)} and a colon")
        try:
            objectives[name] = float(limit) / 1000
        except ValueError:
            raise ValueError(f"{text!r} must end in milliseconds, like {name}:500") from None
    return objectives


def objectives_text(objectives: Mapping[str, float]) -> str:
    return ", ".join(f"{name} ≤ {1000 * limit_s:g} ms" for name, limit_s in objectives.items())


def is_good(timeline: Timeline, objectives: Mapping[str, float]) -> bool:
    """Whether it was answered and met each objective; one that cannot be measured, as with a single token, is met."""
    if timeline.error:
        return False
    for name, limit_s in objectives.items():
        value = MEASURES[name](timeline)
        if value is not None and value > limit_s:
            return False
    return True

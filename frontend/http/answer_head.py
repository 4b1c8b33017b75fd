"""What all parts of one answer have in common."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerHead:
    answer_id: str
    model: str
    warnings: list[str]
    created: int  # seconds since 1970

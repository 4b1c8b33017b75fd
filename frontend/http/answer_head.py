"""What all parts of one answer have in common."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AnswerHead:
    answer_id: str
    model: str
    warnings: list[str]
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

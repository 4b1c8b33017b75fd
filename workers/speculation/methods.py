"""The drafters of the configuration."""

from typing import assert_never

from paged_serve.protocol.messages.config import SpeculationConfig

from .drafter import Drafter
from .ngram import NgramDrafter
from .suffix import SuffixDrafter


def drafter_of(config: SpeculationConfig, device: str, of_model: Drafter | None = None) -> Drafter | None:
    """The drafter of the configured method; None: there are no drafts.

    `of_model` uses the draft model or head, on rank 0.
    """
    match config.method:
        case "off":
            return None
        case "auto" if not config.is_on(device):
            return None
        case "ngram":
            return NgramDrafter()
        case "suffix" | "auto":
            return SuffixDrafter(config.history_tokens)
        case "draft" | "eagle3" | "mtp":
            return of_model
        case _:
            assert_never(config.method)

"""Prompts that ask for the text between two others, for models that were trained with tokens for it.

Bavarian et al., Efficient Training of Language Models to Fill in the Middle, 2022. The tokens are recognized by their
spelling, the only information about them in a model's files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .tokenizer import Tokenizer

# (before the prefix, before the suffix, before the output); without the last one the suffix comes first.
_SPELLINGS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral
)
_ENDS = ("▁<EOT>", "<|file_separator|>", "<|file_sep|>", "<|fim_pad|>", "<|repo_name|>", "<file_sep>")


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """The model's tokens for filling in the middle."""

    prefix: int
    suffix: int
    middle: int | None
    ends: tuple[int, ...]  # end an output, besides the model's own end tokens

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        if self.middle is None:
            return [self.suffix, *after, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *after, self.middle]


def fill_in_middle(tokenizer: Tokenizer) -> FillInMiddle | None:
    """None for a model without such tokens."""
    for prefix, suffix, middle in _SPELLINGS:
        begin, hole = tokenizer.token_id(prefix), tokenizer.token_id(suffix)
        end = None if middle is None else tokenizer.token_id(middle)
        if begin is not None and hole is not None and (middle is None or end is not None):
            ends = (token for spelling in _ENDS if (token := tokenizer.token_id(spelling)) is not None)
            return FillInMiddle(begin, hole, end, tuple(ends))
    return None

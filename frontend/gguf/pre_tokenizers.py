"""How byte-level tokenizers divide a text before merging, by the name in `tokenizer.ggml.pre`.

The expressions are those of the models' tokenizer.json files; the names those of llama.cpp (llama-vocab.cpp).
"""

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(after: str, digits: str) -> str:
    """Words are divided where a small letter is followed by a capital."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{upper}*{lower}+{after}|{start}{upper}+{lower}*{after}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`split`: the expression; empty: GPT-2's own, which the library has."""

    split: str = ""
    single_digits: bool = False  # before GPT-2's expression
    composes: bool = False  # texts are composed first (Unicode's NFC)
    ignores_merges: bool = False  # a word that is a token is not merged from its parts
    adds_bos: bool = False  # if the file does not say

    def normalizer(self) -> dict[str, Any] | None:
        """As in tokenizer.json."""
        return {"type": "NFC"} if self.composes else None

    def pre_tokenizer(self) -> dict[str, Any]:
        """As in tokenizer.json."""
        steps: list[dict[str, Any]] = []
        if self.split:
            steps.append({"type": "Split", "pattern": {"Regex": self.split}, "behavior": "Isolated", "invert": False})
        if self.single_digits:
            steps.append({"type": "Digits", "individual_digits": True})
        steps.append(
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not self.split}
        )
        return {"type": "Sequence", "pretokenizers": steps}


_LLAMA3 = PreTokenizer(_words(r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True)
_THREE_DIGITS = PreTokenizer(_words(r"\p{N}{1,3}"))
_GPT2, _DIGITS = PreTokenizer(), PreTokenizer(single_digits=True)
PRE_TOKENIZERS = {  # those of models whose architectures are supported
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _THREE_DIGITS),
    "qwen2": PreTokenizer(_words(r"\p{N}"), composes=True),
    "deepseek-r1-qwen": PreTokenizer(_words(r"\p{N}")),
    "tekken": PreTokenizer(_cased_words("", r"\p{N}"), ignores_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizer(_cased_words(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")),
    **dict.fromkeys(("gpt-2", "phi-2"), _GPT2),
    "olmo": PreTokenizer(composes=True),
    **dict.fromkeys(("refact", "smollm"), _DIGITS),
}

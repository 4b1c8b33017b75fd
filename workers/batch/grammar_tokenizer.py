"""A model's tokenizer for grammars: the bytes of every token."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Classes of tokens that a mask allows or forbids as a whole where possible: white space, and text in a JSON string up
# to a number of characters. With the library's 10 and 30, masks of strings of bounded length take three times as long.
SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(rf'[^"\\\x00-\x1F\x7F]{{1,{count}}}' for count in (3, 6, 9, 12, 16, 20, 30)),
    r'[^"\\\x00-\x1F\x7F]+',
]


def tokenizer_for_grammars(
    path: Path, vocab_size: int, eos_token_ids: Sequence[int] = (), num_unused: int = 0
) -> "LLTokenizer":
    """Read the tokenizer.json at `path`. Raises ValueError if it is not that of a model with `vocab_size` tokens.

    `num_unused`: further tokens that the tokenizer may have and the model does not write.
    """
    import llguidance

    text = path.read_text(encoding="utf-8")
    found = json.loads(text)
    if (count := len((found.get("model") or {}).get("vocab") or ())) > (known := vocab_size + num_unused):
        raise ValueError(
            f"it has {count} tokens, but the model's vocabulary only {known}, so it is another model's. Give the "
            "model's own with --tokenizer"
        )
    eos = list(eos_token_ids) or None
    return llguidance.LLTokenizer(_adapted(text, found, vocab_size), n_vocab=vocab_size, eos_token=eos, slices=SLICES)


def _adapted(text: str, found: Any, vocab_size: int) -> str:
    """The tokenizer.json for LLTokenizer, without added tokens that the model lacks, as a <pad> often is.

    llguidance treats every added token of the form <…> as special, which no text matches. Added tokens that are not
    special become ordinary tokens here, so that a grammar can match the text <tool_call>.
    """
    added, vocabulary = found.get("added_tokens") or [], (found.get("model") or {}).get("vocab")
    held = [token for token in added if token["id"] < vocab_size]
    plain = [token for token in held if not token["special"] and token["content"].startswith("<")]
    if not isinstance(vocabulary, dict):
        vocabulary, plain = {}, []
    is_longer = max(vocabulary.values(), default=0) >= vocab_size
    if not plain and len(held) == len(added) and not is_longer:
        return text
    if is_longer:
        _shorten(found["model"], vocab_size)
        vocabulary = found["model"]["vocab"]
    written = _alphabet() if _is_byte_level(found.get("decoder")) else None
    for token in plain:
        vocabulary[_spelling(token["content"], written)] = token["id"]
    found["added_tokens"] = [token for token in held if token not in plain]
    return json.dumps(found, ensure_ascii=False)


def _shorten(model: dict[str, Any], vocab_size: int) -> None:
    """Leave out the tokens from `vocab_size` on, and the merges that make them or are of them."""
    vocabulary = {token: index for token, index in model["vocab"].items() if index < vocab_size}
    pairs = [(merge, merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model.get("merges") or ()]
    model["vocab"] = vocabulary
    model["merges"] = [merge for merge, parts in pairs if {*parts, "".join(parts)} <= vocabulary.keys()]


def _is_byte_level(decoder: Any) -> bool:
    return isinstance(decoder, dict) and (
        decoder.get("type") == "ByteLevel" or any(map(_is_byte_level, decoder.get("decoders") or []))
    )


def _spelling(content: str, alphabet: dict[int, str] | None) -> str:
    """A token as the vocabulary spells it: one character per byte, or with visible spaces."""
    if alphabet is None:
        return content.replace(" ", "▁")
    return "".join(alphabet[byte] for byte in content.encode())


def _alphabet() -> dict[int, str]:
    """GPT-2's visible character for each byte: the byte's own, or the next unused one from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}

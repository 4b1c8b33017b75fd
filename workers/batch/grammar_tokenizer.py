"""A model's tokenizer for grammars: the bytes of every token."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Classes of tokens that a mask allows or forbids together where possible: white space, and text of a JSON string up to
# a number of characters. With the library's 10 and 30, masks of a string of bounded length take three times as long.
SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(rf'[^"\\\x00-\x1F\x7F]{{1,{count}}}' for count in (3, 6, 9, 12, 16, 20, 30)),
    r'[^"\\\x00-\x1F\x7F]+',
]


def tokenizer_for_grammars(path: Path, vocab_size: int, eos_token_ids: Sequence[int] = ()) -> "LLTokenizer":
    """Of the tokenizer.json at `path`. Raises ValueError when it is no tokenizer's."""
    import llguidance

    eos = list(eos_token_ids) or None
    return llguidance.LLTokenizer(_text(path), n_vocab=vocab_size, eos_token=eos, slices=SLICES)


def _text(path: Path) -> str:
    """What LLTokenizer reads.

    llguidance takes every added token of the form <…> for a special one, which no text can spell. Those that are not
    special become ordinary tokens here, so that a grammar that spells <tool_call> can be followed.
    """
    text = path.read_text()
    found = json.loads(text)
    added, vocabulary = found.get("added_tokens") or [], (found.get("model") or {}).get("vocab")
    plain = [token for token in added if not token["special"] and token["content"].startswith("<")]
    if not plain or not isinstance(vocabulary, dict):
        return text
    written = _alphabet() if _is_byte_level(found.get("decoder")) else None
    for token in plain:
        vocabulary[_spelling(token["content"], written)] = token["id"]
    found["added_tokens"] = [token for token in added if token not in plain]
    return json.dumps(found, ensure_ascii=False)


def _is_byte_level(decoder: Any) -> bool:
    return isinstance(decoder, dict) and (
        decoder.get("type") == "ByteLevel" or any(map(_is_byte_level, decoder.get("decoders") or []))
    )


def _spelling(content: str, alphabet: dict[int, str] | None) -> str:
    """As the vocabulary writes a token: byte by byte, or with spaces made visible."""
    if alphabet is None:
        return content.replace(" ", "▁")
    return "".join(alphabet[byte] for byte in content.encode())


def _alphabet() -> dict[int, str]:
    """A visible character for each byte (GPT-2's): itself, or the next one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}

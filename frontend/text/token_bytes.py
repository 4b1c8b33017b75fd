"""The bytes of text that a token stands for, by the decoder that tokenizer.json declares."""

import re
from collections.abc import Callable
from typing import Any

from paged_serve.protocol.errors import ConfigError

BytesOf = Callable[[str], bytes]  # vocabulary spelling of a token -> the bytes it adds to the text

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
WORD_PIECE = "WordPiece"  # of encoders


def bytes_of_token(decoder: dict[str, Any]) -> BytesOf:
    """The rule for one tokenizer. Raises ConfigError for a decoder that cannot be applied token by token."""
    parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    types = {part.get("type") for part in parts}
    if types <= {"ByteLevel", "Fuse"} and "ByteLevel" in types:
        return _byte_level()
    if types <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        replacing = (part for part in parts if part.get("type") in ("Replace", "Metaspace"))
        return _word_pieces("ByteFallback" in types, [_replacement(part) for part in replacing])
    if types == {WORD_PIECE}:
        return _words(parts[0].get("prefix", "##"))
    raise ConfigError(
        f"tokenizer.json has the decoder {', '.join(sorted(map(str, types)))}; "
        "paged-serve supports byte-level, SentencePiece-like and WordPiece tokenizers"
    )


def _byte_level() -> BytesOf:
    # Printable bytes stand for themselves; the rest are moved up to 256, 257, … in order.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(moved)}

    def bytes_of(token: str) -> bytes:
        try:
            return bytes([byte_of[char] for char in token])
        except KeyError:  # an added token, spelled as plain text
            return token.encode()

    return bytes_of


def _words(prefix: str) -> BytesOf:
    """For display: a decoder's clean-up, and the space before the first word, do not belong to a token."""
    return lambda token: (token.removeprefix(prefix) if token.startswith(prefix) else f" {token}").encode()


def _replacement(part: dict[str, Any]) -> tuple[str, str]:
    """What a part of the decoder replaces, and with what. Raises ConfigError for a regular expression."""
    if part["type"] == "Metaspace":
        return part["replacement"], " "
    [(kind, pattern)] = part["pattern"].items()
    if kind == "Regex" and pattern != re.escape(pattern):
        raise ConfigError(
            f"tokenizer.json: the decoder replaces the expression {pattern!r}; paged-serve supports replacing a string"
        )
    return pattern, part["content"]


def _word_pieces(byte_fallback: bool, replacements: list[tuple[str, str]]) -> BytesOf:
    def bytes_of(token: str) -> bytes:
        if byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        return token.encode()

    return bytes_of

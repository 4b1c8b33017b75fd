"""A model's tokenizer as grammars see it: the bytes of every token."""

import json
from pathlib import Path
from typing import Any


def tokenizer_for_grammars(path: Path) -> str:
    """What LLTokenizer reads: the text of tokenizer.json. Raises ValueError when it is no tokenizer's.

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

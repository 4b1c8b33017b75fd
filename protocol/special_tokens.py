"""The special tokens of a tokenizer, as the files of its folder name them."""

from pathlib import Path
from typing import Any

from .json_file import read_json_file

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
CONFIG_FILE, MAP_FILE = "tokenizer_config.json", "special_tokens_map.json"


def special_tokens(folder: Path) -> dict[str, str]:
    """Name -> text, of those of SPECIAL_TOKENS that the files name; the same as in transformers.

    Only folders written before there was `added_tokens_decoder` need their special_tokens_map.json. Raises ConfigError.
    """
    named = _fields(folder / CONFIG_FILE)
    if "added_tokens_decoder" not in named:
        named |= _fields(folder / MAP_FILE)
    return {name: text for name in SPECIAL_TOKENS if (text := _content(named.get(name)))}


def _fields(path: Path) -> dict[str, Any]:
    return read_json_file(path, dict[str, Any]) if path.is_file() else {}


def _content(token: object) -> str:
    """A special token as the files write it: plain, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""

"""The tokens that end a sequence: those that the model's configuration names, and the eos_token of its tokenizer.

A fine-tune for chats often keeps the configuration of its base model, and only its tokenizer names the end of a turn.
"""

from pathlib import Path
from typing import Any

import msgspec

from paged_serve.protocol.json_file import read_json_file
from paged_serve.protocol.special_tokens import special_tokens

from ..checkpoint.hf_config import HFConfig


class _GenerationConfig(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None


class _AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Vocabulary(msgspec.Struct, frozen=True):
    vocab: dict[str, int] | list[tuple[str, Any]] = {}  # of Unigram models a list of (token, score)


class _Tokenizer(msgspec.Struct, frozen=True):
    model: _Vocabulary = _Vocabulary()
    added_tokens: list[_AddedToken] | None = None


def eos_token_ids(folder: Path, config: HFConfig, tokenizer: str = "") -> tuple[int, ...]:
    """The end tokens of the model in `folder`, which `config` describes; may be empty. Raises ConfigError.

    `tokenizer`: the folder of its tokenizer, if that is another. Ids that the model does not have, as -1, are left out.
    """
    ids = dict.fromkeys((*_configured(folder, config), *_of_tokenizer(Path(tokenizer or folder))))
    return tuple(token for token in ids if 0 <= token < config.vocab_size)


def _configured(folder: Path, config: HFConfig) -> tuple[int, ...]:
    """The end tokens in generation_config.json if it has any, otherwise in config.json."""
    path = folder / "generation_config.json"
    found: int | list[int] | None = None
    if path.is_file():
        found = read_json_file(path, _GenerationConfig).eos_token_id
    if found is None:
        found = config.eos_token_id
    return (found,) if isinstance(found, int) else tuple(found or ())


def _of_tokenizer(folder: Path) -> tuple[int, ...]:
    """The id of `eos_token`, if the folder has a tokenizer that has one."""
    path, text = folder / "tokenizer.json", special_tokens(folder).get("eos_token")
    if text is None or not path.is_file():
        return ()
    found = read_json_file(path, _Tokenizer)
    vocabulary = found.model.vocab
    ids = {token.content: token.id for token in found.added_tokens or ()}
    if isinstance(vocabulary, dict):
        ids |= vocabulary
    else:
        ids |= {token: number for number, (token, _) in enumerate(vocabulary)}
    return (ids[text],) if text in ids else ()

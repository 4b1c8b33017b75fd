"""Text to token ids and back, from a model folder's tokenizer files."""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.special_tokens import special_tokens

from .poison_texts import PoisonTexts
from .text_growth import check_growth
from .token_bytes import bytes_of_token

SMALL_TEXT_BYTES = 256 << 10  # has at most as many tokens, and encoding it takes at most 40 MB
MAX_ADDED_TOKENS = 16
PIECE_CHARS = 64 << 10
MAX_SEARCHES = 256  # searches for tokens that contain a text, kept in a cache
PIECE_SLACK_TOKENS = 64  # more than a cut between pieces can add
_LOOKS_SPECIAL = re.compile(r"<[|｜].*[|｜]>")
PROBE = "Some text, 1 or 2 words.\n"  # a file may load without error and still be nonsense


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Turn the library's errors into ConfigError: bare Exception for an unreadable file, BaseException for a panic."""
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise ConfigError(f"{path} cannot be read: {error}") from None


class Tokenizer:
    """The model's tokenizer. Safe to use from several threads. Raises ConfigError when the folder has none."""

    def __init__(self, folder: str):
        path = Path(folder)
        if not (path / "tokenizer.json").is_file():
            needed = "`pip install sentencepiece protobuf` and " if (path / "tokenizer.model").is_file() else ""
            raise ConfigError(
                f"{folder} has no tokenizer.json; point --tokenizer at a folder that has one, or convert the slow "
                f"tokenizer once, with {needed}transformers: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        self.poison_texts: PoisonTexts | None = None  # of a server's frontend
        with _understood(path / "tokenizer.json"):
            self._load(path)
            self.decode(self.encode(PROBE))

    def _load(self, path: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        self._growth = 1.0  # growth of a text by the normalizer
        for name in ("decoder", "normalizer"):
            if (part := getattr(self._tokenizer, name)) is not None:
                growth = check_growth(json.loads(part.__getstate__()), f"{path / 'tokenizer.json'}: the {name}")
                self._growth = growth if name == "normalizer" else 1.0
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = read_json(path / "tokenizer_config.json")
        decoder = self._tokenizer.decoder
        self._bytes_of = bytes_of_token(json.loads(decoder.__getstate__()) if decoder is not None else {})
        self._writes_words = isinstance(decoder, tokenizers.decoders.WordPiece)
        self._bytes: dict[int, bytes] = {}
        self._found: dict[str, tuple[int, ...]] = {}
        self.vocab_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.special_tokens = special_tokens(path)
        self.bos_token: str | None = self.special_tokens.get("bos_token")
        added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self.added_tokens = added
        self.special_token_ids = frozenset(token for token, entry in added.items() if entry.special)
        ends = self._named_ends(path)
        # Several models declare special tokens as ordinary added ones: an end of turn and a <|name|> count too.
        self.special_spellings = {
            entry.content: token
            for token, entry in added.items()
            if entry.special or token in ends or _LOOKS_SPECIAL.fullmatch(entry.content)
        }
        self._prefix_change = self._find_prefix_change(config.get("add_bos_token"))
        self._put_around = self._find_put_around()
        self.normalizes_special_tokens = self._tokenizer.normalizer is not None and any(
            entry.normalized for entry in added.values() if entry.content in self.special_spellings
        )

    def check_tasks(self, tasks: Collection[str]) -> None:
        """Raises ConfigError if the model generates text and the text of a token depends on its neighbours."""
        if self._writes_words and "generate" in tasks:
            raise ConfigError(
                "tokenizer.json has the decoder WordPiece, and the model generates; texts are written with byte-level "
                "and SentencePiece-like tokenizers"
            )

    def added_token_ids(self, *, special: bool) -> dict[str, int]:
        """text -> id, of either the special or the other added tokens."""
        return {entry.content: token for token, entry in self.added_tokens.items() if entry.special == special}

    @contextlib.contextmanager
    def library_call(self, *texts: str) -> Iterator[None]:
        """Context of a call of the library with these texts. Raises InvalidRequest when it panics, as some regular
        expressions do at some texts."""
        with contextlib.nullcontext() if self.poison_texts is None else self.poison_texts.noted("\0".join(texts)):
            try:
                yield
            except BaseException as error:
                if not _is_panic(error):
                    raise
                raise InvalidRequest("the model's tokenizer fails on this text; send another one") from error

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        # A batch of one: only the library's batch functions let other threads run meanwhile.
        with self.library_call(text):
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        if not add_special_tokens or self._prefix_change is None:
            return ids
        bos, add = self._prefix_change
        return [bos, *ids] if add else ids[1:]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int | None], list[int]]:
        """Two texts as one prompt: (tokens, the text that each is of, None: of none, the tokens' types)."""
        with self.library_call(first, second):
            [encoding] = self._tokenizer.encode_batch_fast([(first, second)])
        ids, texts, types = list(encoding.ids), list(encoding.sequence_ids), list(encoding.type_ids)
        if self._prefix_change is None:
            return ids, texts, types
        bos, add = self._prefix_change
        return ([bos, *ids], [None, *texts], [0, *types]) if add else (ids[1:], texts[1:], types[1:])

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        """The tokens of a text with the special tokens that `encode` adds before and after them."""
        before, after = self._put_around
        return [*before, *ids, *after]

    def to_json(self) -> str:
        """The tokenizer in the form of tokenizer.json, without truncation and padding."""
        return str(self._tokenizer.to_str())

    def tokens_beyond(self, text: str, limit: int) -> int:
        """A lower bound above `limit` for the number of tokens in the text; 0 when the text has at most `limit` tokens.

        A long text is encoded in pieces and no further than necessary: encoding takes 150 bytes per token.
        """
        small, size = int(SMALL_TEXT_BYTES / self._growth), int(PIECE_CHARS / self._growth)
        if len(text) <= small // 4 or len(text.encode()) <= small:
            return 0
        count = 0
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            with self.library_call(piece):
                [encoding] = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            count += max(0, len(encoding) - PIECE_SLACK_TOKENS)
            if count > limit:
                return count
        return 0

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence, replacement characters where its bytes are not UTF-8."""
        tokens = list(ids)
        with self.library_call(str(tokens)):
            [text] = self._tokenizer.decode_batch([tokens], skip_special_tokens=skip_special_tokens)
        return str(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The text that the token adds to the text before it; empty for an id outside the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self.token(token_id)
            known = self._bytes[token_id] = b"" if token is None else self._bytes_of(token)
        return known

    def token_text(self, token_id: int) -> str:
        """One token for people: half a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def tokens_with(self, text: str) -> tuple[int, ...]:
        """Tokens that contain this text; if there is none, the last token of the text. Slow for a new text."""
        if (known := self._found.get(text)) is not None:
            return known
        sought = text.encode()
        found = tuple(token for spelling, token in self.vocabulary().items() if sought in self._bytes_of(spelling))
        found = found or tuple(self.encode(text, add_special_tokens=False)[-1:])
        if len(self._found) < MAX_SEARCHES:
            self._found[text] = found
        return found

    def vocabulary(self) -> dict[str, int]:
        """spelling -> id, added tokens included. Slow."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return found

    def token(self, token_id: int) -> str | None:
        """The spelling of a token in the vocabulary."""
        found: str | None = self._tokenizer.id_to_token(token_id)
        return found

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def longest_token_chars(self) -> int:
        """Characters of the longest token: a text of n characters has at least n / longest tokens. Slow."""
        return max(map(len, self.vocabulary()), default=1)

    def _named_ends(self, folder: Path) -> tuple[int, ...]:
        """The end tokens that the files of this folder name; those of the model are in Welcome."""
        ids: list[object] = [self.token_id(self.special_tokens.get("eos_token", ""))]
        for name in ("generation_config.json", "config.json"):
            declared = read_json(folder / name).get("eos_token_id")
            ids += declared if isinstance(declared, list) else [declared]
        return tuple(dict.fromkeys(token for token in ids if isinstance(token, int) and token >= 0))

    def _find_put_around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text. Raises ConfigError for more than a few: prompts grow by them."""
        bare, whole = self.encode(PROBE, add_special_tokens=False), self.encode(PROBE)
        if len(whole) - len(bare) > MAX_ADDED_TOKENS:
            raise ConfigError(
                f"tokenizer.json: the post_processor makes {len(whole)} tokens of {len(bare)}; "
                f"it may add {MAX_ADDED_TOKENS} special tokens"
            )
        at = next((i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare), 0)
        return whole[:at], whole[at + len(bare) :]

    def _find_prefix_change(self, add_bos: object) -> tuple[int, bool] | None:
        """(bos id, add or remove it) where tokenizer_config.json contradicts tokenizer.json; else None."""
        bos = self.token_id(self.bos_token) if self.bos_token else None
        if bos is None or not isinstance(add_bos, bool):
            return None
        adds: bool = self._tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos]
        return None if adds == add_bos else (bos, add_bos)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} when there is no such file. Raises ConfigError when it is not an object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a value of type {type(value).__name__}, where an object is expected")
    return value


def words_to_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, at the start of a text and after a space: the sequences that `bad_words` forbids."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelling in spellings(word):
            if ids := tuple(tokenizer.encode(spelling, add_special_tokens=False)):
                found[ids] = None
    return tuple(found)


def spellings(word: str) -> list[str]:
    """The word as it is, at the start of a text and after a space."""
    bare = word.lstrip(" ")
    return list(dict.fromkeys((word, bare, " " + bare)))

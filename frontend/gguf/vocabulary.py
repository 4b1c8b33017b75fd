"""The vocabulary of a GGUF file: its tokens, their kinds, and the special ones."""

import re
from dataclasses import dataclass
from enum import IntEnum

from paged_serve.protocol.gguf.metadata import Metadata

PREFIX = "tokenizer.ggml."
MAX_TOKEN_CHARS = 1 << 10
_PADDING = re.compile(r"▁?\[PAD(\d+)\]")
SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # in tokenizer_config.json: in GGUF
MORE_ENDS = ("eot", "eom")
# Tokens that end an answer wherever they exist; a file names only one of them, or two.
END_TEXTS = (
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>"),
    *("<end_of_turn>", "<eos>", "<|return|>", "<|call|>", "<|endofturn|>", "<turn|>", "<|tool_response>"),
)
MESSAGE_END, ANSWER_END = "<|end|>", "<|return|>"  # gpt-oss has both: its answers are of several messages


class Kind(IntEnum):
    """Token types of ggml."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, without the filling at the end, and what the file says about them."""

    metadata: Metadata
    tokens: list[str]
    kinds: list[Kind]

    @classmethod
    def read(cls, metadata: Metadata, num_rows: int) -> "Vocabulary":
        """`num_rows`: of the embedding. Raises ConfigError."""
        tokens = metadata.texts(f"{PREFIX}tokens")
        if len(tokens) > num_rows:
            raise metadata.refused(f"it has {len(tokens)} tokens, but an embedding of {num_rows} rows")
        kinds = _kinds(metadata, len(tokens))
        longest = max(map(len, tokens), default=0)
        if not tokens or longest > MAX_TOKEN_CHARS:
            raise metadata.refused(
                f"it has {len(tokens)} tokens of up to {longest} characters; at least one, of at most {MAX_TOKEN_CHARS}"
            )
        while tokens and kinds[-1] == Kind.UNUSED and _is_padding(tokens[-1], len(tokens) - 1):
            tokens.pop()
            kinds.pop()
        return cls(metadata, tokens, kinds)

    def special_ids(self) -> dict[str, int]:
        """ "bos", "eos", "unk", "pad" -> id, of those that the file has."""
        found = {name: self.id_of(f"{PREFIX}{key}_token_id") for name, key in SPECIAL.items()}
        return {name: token for name, token in found.items() if token is not None}

    def end_ids(self) -> list[int]:
        """The tokens that end an answer, those that the file names first."""
        named = [self.id_of(f"{PREFIX}{name}_token_id") for name in ("eos", *MORE_ENDS)]
        known = [
            token
            for token, (text, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if text in END_TEXTS and kind in (Kind.CONTROL, Kind.USER_DEFINED)
            if text != MESSAGE_END or ANSWER_END not in self.tokens
        ]
        return list(dict.fromkeys(token for token in (*named, *known) if token is not None))

    def check_distinct(self) -> None:
        """Raises ConfigError if two tokens have one text: a tokenizer.json has an id for each text."""
        seen: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if (first := seen.setdefault(token, index)) != index:
                raise self.metadata.refused(
                    f"its tokens {first} and {index} are both {token[:40]!r}. Give the model's own tokenizer with "
                    "--tokenizer FOLDER"
                )

    def scores(self) -> list[float]:
        scores = self.metadata.numbers(f"{PREFIX}scores")
        if len(scores) < len(self.tokens):
            raise self.metadata.refused(f"it has {len(self.tokens)} tokens, but {len(scores)} scores")
        return scores

    def id_of(self, key: str) -> int | None:
        """The token that the metadata names; None: it names none. Raises ConfigError for one that is not there."""
        if key not in self.metadata:
            return None
        token = self.metadata.whole(key)
        if not 0 <= token < len(self.tokens):
            raise self.metadata.refused(f"{key}={token} is not one of its {len(self.tokens)} tokens")
        return token


def _kinds(metadata: Metadata, count: int) -> list[Kind]:
    key = f"{PREFIX}token_type"
    if key not in metadata:
        return [Kind.NORMAL] * count
    found = metadata.numbers(key)
    if len(found) != count:
        raise metadata.refused(f"it has {count} tokens, but {len(found)} entries in {key}")
    if unknown := sorted(set(found) - set(Kind)):
        raise metadata.refused(f"{key} holds {unknown[0]:g}; token types are 1 to 6")
    return [Kind(int(kind)) for kind in found]


def _is_padding(token: str, index: int) -> bool:
    match = _PADDING.fullmatch(token)
    return match is not None and int(match[1]) == index

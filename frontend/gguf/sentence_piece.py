"""tokenizer.json of a SentencePiece tokenizer (`tokenizer.ggml.model` llama).

Such a tokenizer merges the two neighbours whose token has the highest score. tokenizer.json has a list of merges
instead: every way to make a token of two others, by the token's score.
"""

from typing import Any

from .byte_level import merges_of_file
from .vocabulary import PREFIX, Kind, Vocabulary

SPACE = "▁"
GEMMA = ("gemma", "gemma2", "gemma3", "gemma-embedding")
MAX_SPLITS = 1 << 28  # characters copied to find the merges; 256,000 tokens take 20 million


def sentence_piece(vocabulary: Vocabulary, architecture: str, *, prefixes: bool = True) -> dict[str, Any]:
    """The parts of tokenizer.json that make tokens of a text. Raises ConfigError.

    `prefixes`: a space is put before a text if the file does not say.
    """
    tokens = [_spelled(token, kind) for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)]
    ids = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, vocabulary.kinds, strict=True) if kind == Kind.UNKNOWN), None)
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": _has_bytes(vocabulary),
        "ignore_merges": False,
        "vocab": ids,
        "merges": _merges(vocabulary, tokens, ids, by_place=architecture in GEMMA),
    }
    prefixes = vocabulary.metadata.truth(f"{PREFIX}add_space_prefix", prefixes)
    normalizers: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE}] if prefixes else []
    normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefixes:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _spelled(token: str, kind: Kind) -> str:
    """Converters write the spaces of user-defined tokens as they are; those of spaces alone are merged like others."""
    return SPACE * len(token) if is_of_spaces(token, kind) else token


def is_of_spaces(token: str, kind: Kind) -> bool:
    return kind == Kind.USER_DEFINED and len(token) > 1 and not token.strip(" " + SPACE)


def _has_bytes(vocabulary: Vocabulary) -> bool:
    """Whether characters without a token become bytes. Raises ConfigError unless there are 256 of them or none."""
    found = {token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == Kind.BYTE}
    if found and found != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise vocabulary.metadata.refused(f"its {len(found)} byte tokens are not <0x00> to <0xFF>")
    return bool(found)


def _merges(vocabulary: Vocabulary, tokens: list[str], ids: dict[str, int], *, by_place: bool) -> list[tuple[str, str]]:
    """Every way to make a token of two, by the token's score, or by its id (Gemma's scores are not in order)."""
    if len(ids) != len(tokens) or sum(len(token) ** 2 for token in tokens) > MAX_SPLITS:
        raise vocabulary.metadata.refused(f"its {len(tokens)} tokens are too long to merge, or not distinct")
    if f"{PREFIX}merges" in vocabulary.metadata:
        return merges_of_file(vocabulary, ids)
    scores = [-float(index) for index in range(len(tokens))] if by_place else vocabulary.scores()
    found = []
    for token, kind, score in zip(tokens, vocabulary.kinds, scores, strict=False):
        if kind not in (Kind.NORMAL, Kind.USER_DEFINED):
            continue
        pairs = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [(ids[left], ids[right], left, right) for left, right in pairs if left in ids and right in ids]
        found += [(-score, -len(left), left, right) for _, _, left, right in sorted(known)]
    found.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in found]

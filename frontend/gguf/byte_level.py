"""tokenizer.json of a byte-level tokenizer (`tokenizer.ggml.model` gpt2)."""

from typing import Any

from .pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from .vocabulary import PREFIX, Vocabulary


def pre_tokenizer_of(vocabulary: Vocabulary) -> PreTokenizer:
    """Raises ConfigError for a name that is not known: a guess would divide texts wrongly without a sign of it."""
    name = vocabulary.metadata.text(f"{PREFIX}pre", "absent")
    if name not in PRE_TOKENIZERS:
        raise vocabulary.metadata.refused(
            f"{PREFIX}pre is {name!r}; supported: {', '.join(PRE_TOKENIZERS)}. Give the model's own tokenizer with "
            "--tokenizer FOLDER"
        )
    return PRE_TOKENIZERS[name]


def byte_level(vocabulary: Vocabulary) -> dict[str, Any]:
    """The parts of tokenizer.json that make tokens of a text."""
    pre = pre_tokenizer_of(vocabulary)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre.ignores_merges,
        "vocab": ids,
        "merges": merges_of_file(vocabulary, ids),
    }
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": pre.normalizer(),
        "pre_tokenizer": pre.pre_tokenizer(),
        "decoder": decoder,
        "model": model,
    }


def merges_of_file(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """The merges, most important first. Raises ConfigError for one that is not of two tokens that make a third."""
    merges = []
    for index, merge in enumerate(vocabulary.metadata.texts(f"{PREFIX}merges")):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise vocabulary.metadata.refused(f"its merge {index}, {merge[:60]!r}, is not of two tokens that make one")
        merges.append((left, right))
    return merges

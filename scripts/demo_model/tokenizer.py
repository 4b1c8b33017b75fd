"""A small byte-level BPE, trained on the generated text."""

import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .text.documents import END, START, STOP, TextSource, plain

# Only these words carry the space before them; every other word, digit or JSON value keeps its tokens wherever it is
# copied to, at 5 % more tokens in all.
SPACED = "the|a|an|of|is|in|to|and|for|on|with|what|that|as|at|it|are|from|me|you|my|can|capital|has|your|this"
WORD = (
    rf"\d|\p{{Lu}}+(?!\p{{Ll}})|\p{{Lu}}\p{{Ll}}*| (?:{SPACED})(?!\p{{Ll}})|\p{{Ll}}+|\p{{L}}+"
    r"| ?[^\s\p{L}\d]+|\s+(?!\S)|\s"
)
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def make_tokenizer(size: int, seed: int = 1, documents: int = 30_000) -> PreTrainedTokenizerFast:
    source = TextSource(random.Random(seed))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = (plain(source.document()) for _ in range(documents))
    trainer = trainers.BpeTrainer(
        vocab_size=size - 2,
        special_tokens=[STOP, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare = (text.replace(START, "").replace(END, "").replace(STOP, "") for text in texts)
    tokenizer.train_from_iterator(bare, trainer)
    # Not special: they stay in the answer when special tokens are skipped.
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ("<tool_call>", "</tool_call>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=STOP,
        chat_template=TEMPLATE.read_text().removesuffix("\n"),
        clean_up_tokenization_spaces=False,
    )


def letter_pieces(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Tokens made of letters only: made-up words are drawn from them evenly, so that no token stays rare."""
    bare = {token.removeprefix("Ġ").lower() for token in tokenizer.get_vocab()}
    return sorted(token for token in bare if token.isascii() and token.isalpha())

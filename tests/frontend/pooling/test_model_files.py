"""The files of a pooling model, pairs of texts as its tokenizer encodes them, and exact cosines."""

import json
import random
from array import array
from fractions import Fraction

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors

from paged_serve.frontend.conversation.prompt_encoder import PromptEncoder
from paged_serve.frontend.pooling.model_files import PoolingFiles
from paged_serve.frontend.pooling.similarity import cosine, dot, numbers
from paged_serve.frontend.pooling.texts import Limit, PoolingTexts
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

WORDS = ["[UNK]", "<s>", "</s>", *"abcdefgh"]
FORMS = {
    "bert": processors.BertProcessing(("</s>", 2), ("<s>", 1)),
    "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    "none": None,
}


def packed(values: list[float]) -> bytes:
    return array("f", values).tobytes()


def test_a_dot_product_is_the_exact_one_rounded_once():
    rng = random.Random(5)
    for _ in range(50):
        pair = [packed([rng.uniform(-1, 1) * 2 ** rng.randint(-60, 60) for _ in range(200)]) for _ in range(2)]
        a, b = map(numbers, pair)
        assert dot(a, b) == float(sum(Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)))


def test_a_cosine_is_within_its_bounds_and_zero_for_zero():
    rng = random.Random(6)
    a = packed([rng.uniform(-1, 1) for _ in range(64)])
    assert cosine(a, a) == 1.0
    assert cosine(a, packed([-x for x in numbers(a)])) == -1.0
    assert cosine(a, bytes(len(a))) == 0.0
    b = packed([rng.uniform(-1, 1) for _ in range(64)])
    assert cosine(a, b) == cosine(b, a)


@pytest.mark.parametrize("name", FORMS)
def test_pairs_are_joined_as_the_tokenizer_joins_them(tmp_path, name):
    library = Library(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(WORDS[:3])
    if FORMS[name] is not None:
        library.post_processor = FORMS[name]
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(str(tmp_path))
    for types in (False, True):
        texts = PoolingTexts(tokenizer, PromptEncoder(tokenizer), PoolingFiles(has_token_types=types))
        for first, second in (("a b", "c"), ("a", "b c d"), ("a b c", "")):
            encoding = library.encode(first, second)
            ids, begins = texts.pair(
                texts.part(first, Limit(99), "a"), texts.part(second, Limit(99), "b"), Limit(99), "b"
            )
            assert ids == encoding.ids
            marked = types and name == "bert"
            assert begins == (encoding.type_ids.index(1) if marked else None)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts must be an object whose values are strings"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"a": 1}},
            "prompts must be an object whose values are strings",
        ),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "b"},
            "default_prompt_name is 'b'; prompts has none",
        ),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length is 'long'; it must be a number"),
        ("sentence_roberta_config.json", {"max_seq_length": 0}, "max_seq_length is 0"),
        ("config.json", {"id2label": {"0": 1}}, "id2label must be an object whose values are strings"),
    ],
)
def test_invalid_files_are_refused_by_name(tmp_path, name, content, says):
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ConfigError) as refused:
        PoolingFiles.load(ModelConfig(model=str(tmp_path)))
    assert name in str(refused.value)
    assert says in str(refused.value)


def test_the_servers_own_limit_replaces_that_of_the_files(tmp_path):
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 100}')
    assert PoolingFiles.load(ModelConfig(model=str(tmp_path))).max_tokens == 100
    assert PoolingFiles.load(ModelConfig(model=str(tmp_path), max_model_len=300)).max_tokens == 0

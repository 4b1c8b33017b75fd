"""The tokenizer of an LLM beside the one that transformers loads from the same folder."""

import pytest

from paged_serve.frontend.config.llm_options import config_of
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.offline.model_text import ModelText
from paged_serve.protocol.errors import InvalidRequest

TEXTS = ["The capital of France is", "a\n\n<|im_end|>é 7"]
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def text():
    text = ModelText(config_of("", {}))
    yield text
    text.close()


@pytest.fixture(scope="module")
def ours(text):
    return text.model_tokenizer()


@pytest.fixture(scope="module")
def theirs():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(demo_model_folder()))


@pytest.mark.parametrize(
    "ask",
    [
        lambda it: [it.encode(text) for text in TEXTS],
        lambda it: it.encode(TEXTS[1], add_special_tokens=False),
        lambda it: it(TEXTS[0]).input_ids,
        lambda it: it(TEXTS)["input_ids"],
        lambda it: it.tokenize(TEXTS[0]),
        lambda it: it.decode(it.encode(TEXTS[1]), skip_special_tokens=True),
        lambda it: it.decode(it.encode(TEXTS[1])),
        lambda it: it.decode(350),
        lambda it: it.batch_decode([[350, 448], [350]]),
        lambda it: it.convert_ids_to_tokens([350, 2]),
        lambda it: it.convert_ids_to_tokens(350),
        lambda it: it.convert_tokens_to_ids("<|im_end|>"),
        lambda it: it.convert_tokens_to_ids(["The", "no such token"]),
        lambda it: it.get_vocab(),
        lambda it: len(it),
        lambda it: (it.eos_token, it.eos_token_id, it.pad_token, it.pad_token_id),
        lambda it: (it.bos_token, it.bos_token_id, it.unk_token_id, it.sep_token),
        lambda it: it.chat_template,
    ],
)
def test_a_method_returns_what_transformers_returns(ours, theirs, ask):
    assert ask(ours) == ask(theirs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": True},
        {"continue_final_message": True},
        {"tools": [TOOL], "add_generation_prompt": True},
        {"chat_template": "{{ messages | length }}{{ enable_thinking }}", "enable_thinking": False},
        {"chat_template": "{{ documents[0].text }}", "documents": [{"text": "sea"}]},
    ],
)
def test_a_conversation_is_rendered_as_by_transformers(ours, theirs, options):
    for talk in (TALK, [TALK, TALK[1:]]):
        shown = ours.apply_chat_template(talk, tokenize=False, **options)
        assert shown == theirs.apply_chat_template(talk, tokenize=False, **options)
        ids = theirs.apply_chat_template(talk, tokenize=True, return_dict=False, **options)
        assert ours.apply_chat_template(talk, **options) == ids


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"return_tensors": "pt"}, "return_tensors is 'pt': tokens are returned as a list; leave it out"),
        ({"truncation": True}, "truncation is True: generate truncates, with tokenization_kwargs; leave it out"),
        ({"documents": [{"text": "x"}]}, "does not read documents"),
        ({"bos_token": "x"}, "cannot set 'bos_token'"),
    ],
)
def test_what_would_be_ignored_is_refused(ours, options, reason):
    with pytest.raises(InvalidRequest) as refused:
        ours.apply_chat_template(TALK, **options)
    assert reason in str(refused.value)


def test_options_without_an_effect_are_accepted(ours):
    options = {"return_tensors": None, "return_dict": False, "padding": False, "truncation": None}
    assert ours.apply_chat_template(TALK, **options) == ours.apply_chat_template(TALK)


def test_another_attribute_of_transformers_names_its_class(ours):
    with pytest.raises(AttributeError, match="has no save_pretrained; for transformers', use its AutoTokenizer"):
        ours.save_pretrained("x")

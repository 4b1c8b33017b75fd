"""What LLM refuses: by the name of what is wrong, while nothing runs."""

import pytest

import paged_serve
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreRequest,
)

from ..fake_core import output
from .running_llm import core_of, llms, models, params

model = pytest.fixture(scope="module")(models)
start = pytest.fixture(llms)


def test_default_parameters_may_be_changed_and_are_checked_when_they_are_used(start):
    llm = start()
    mine = llm.get_default_sampling_params()
    mine.max_tokens, mine.stop = 3, ["x"]
    llm.generate([[5]], mine, lora_request=None)
    (request,) = core_of(llm).all(EngineCoreRequest)
    assert (request.sampling_params.max_tokens, request.sampling_params.top_k) == (3, 7)
    assert llm.get_default_sampling_params().max_tokens == 5
    mine.top_p = 2.0
    with pytest.raises(InvalidRequest, match="top_p"):
        llm.generate([[5]], mine)


def test_errors_are_exported_by_the_package():
    assert paged_serve.InvalidRequest is InvalidRequest
    assert issubclass(paged_serve.EngineDead, paged_serve.PagedServeError)
    assert all(getattr(paged_serve, name) for name in paged_serve.__all__)


def test_an_invalid_request_is_refused_and_nothing_runs(start):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            core.send(output(1, message.request_id, 0, [1]), peer)

    llm = start(script)
    with pytest.raises(InvalidRequest, match="vocabulary"):
        llm.generate([[5], [1000]], params())
    assert core_of(llm).wait_for(AbortRequests)[0].stream_ids == (1,)
    for prompts, fields in (
        (7, {}),
        ([None], {}),
        ({"text": "5"}, {}),
        ([[5], [6]], {"sampling_params": [params()]}),
        ([[5], [6]], {"priority": [1]}),
    ):
        with pytest.raises(InvalidRequest):
            llm.generate(prompts, **fields)


@pytest.mark.parametrize(
    ("prompt", "field", "says"),
    [
        (b"56", "prompts", "a prompt is of type bytes; pass a string"),
        ([b"56"], "prompts", "a prompt is of type bytes; pass a string"),
        (bytearray(b"5678"), "prompts", "a prompt is of type bytearray; pass a string"),
        ({"prompt_token_ids": b"567"}, "prompt_token_ids", "prompt_token_ids is b'567'; it must be a list"),
        ([5, -1], "prompt_token_ids", "prompt_token_ids is [5, -1]; it must be a list of token ids, integers from 0"),
        ([[5, True]], "prompt_token_ids", "prompt_token_ids is [5, True]; it must be a list of token ids"),
        ([True], "prompt_token_ids", "prompt_token_ids is [True]; it must be a list of token ids"),
        ([[5, 2**31]], "prompt_token_ids", "prompt_token_ids is [5, 2147483648]; it must be"),
        ({"prompt_token_ids": 5}, "prompt_token_ids", "prompt_token_ids is 5; it must be a list"),
        ({"prompt_token_ids": b"5678"}, "prompt_token_ids", "prompt_token_ids is b'5678'; it must be a list"),
        ({"prompt": 5}, "prompt", "prompt is 5; it must be a string"),
        ({"prompt": "5", "cache_salt": 0}, "cache_salt", "cache_salt is 0; it must be a string of at most 128 char"),
        ({"prompt": "5", "multi_modal_data": {"image": 1}}, "prompts", "a prompt has 'multi_modal_data': only text is"),
        ({"prompt_embeds": [1.0]}, "prompts", "a prompt has 'prompt_embeds': a prompt is text or tokens"),
        ({"prompt": "5", "type": "multimodal"}, "prompts", "a prompt has 'type'; it may have cache_salt, prompt"),
        ("5\ud83d", "prompt", r"prompt has '\ud83d', half of a surrogate pair, at 1"),
    ],
)
def test_a_prompt_that_no_tokenizer_takes_is_refused_by_name(start, prompt, field, says):
    with pytest.raises(InvalidRequest) as refused:
        start().generate(prompt, params())
    assert refused.value.param == field
    assert str(refused.value).startswith(says)


def test_parameters_of_another_type_are_refused_by_name(start):
    with pytest.raises(
        InvalidRequest, match=r"sampling_params is {'temperature': 0}; it must be of the class Sampling"
    ):
        start().generate([5], {"temperature": 0})

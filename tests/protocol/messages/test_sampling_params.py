"""SamplingParams: every bound of the table holds, from Python and from the wire, and the error names the field."""

import contextlib
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages import sampling_params
from paged_serve.protocol.messages.message import MAX_TOKEN_ID
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.samplers import Dry, ThinkingBudget
from paged_serve.protocol.messages.sampling_params import (
    BOOLEANS,
    BOUNDS,
    INTEGERS,
    MAX_LOGIT_BIAS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    OPTIONAL,
    FinishReason,
    SamplingParams,
)
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
ANYTHING = st.recursive(NUMBERS | st.binary(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=5)
FIELDS = list(SamplingParams.__struct_fields__)
# other fields that these need to be valid
COMPANIONS = {"n": {"temperature": 1.0}, "min_tokens": {"max_tokens": None}, "max_tokens": {"min_tokens": 0}}


def make(field, value):
    return SamplingParams(**COMPANIONS.get(field, {}) | {field: value})


def allowed(field, value):
    if value is None:
        return True
    low, high = BOUNDS[field]
    right_type = isinstance(value, int) if field in INTEGERS else isinstance(value, int | float)
    excluded = field in ("top_p", "repetition_penalty") and value == 0
    return right_type and not isinstance(value, bool) and low <= value <= high and not excluded


@given(field=st.sampled_from(sorted(BOUNDS)), value=NUMBERS)
@settings(max_examples=500)
def test_a_number_is_accepted_exactly_when_the_table_allows_it(field, value):
    if allowed(field, value):
        expected = value
        if value is None and field not in OPTIONAL:
            expected = getattr(SamplingParams(), field)
        assert getattr(make(field, value), field) == expected
    else:
        with pytest.raises(InvalidRequest) as caught:
            make(field, value)
        assert caught.value.param == field


@pytest.mark.parametrize("field", sorted(BOUNDS))
def test_the_first_values_inside_each_bound_pass_and_those_outside_fail(field):
    low, high = BOUNDS[field]
    for bound, outward in ((low, -1), (high, 1)):
        if allowed(field, bound):
            make(field, bound)
        outside = bound + outward if field in INTEGERS else math.nextafter(bound, outward * math.inf)
        with pytest.raises(InvalidRequest, match=field):
            make(field, outside)
    for never in (math.nan, math.inf, -math.inf, 10**400, True, "1", [1], b"1"):
        with pytest.raises(InvalidRequest, match=field):
            make(field, never)


@given(field=st.sampled_from(FIELDS), value=ANYTHING)
@settings(max_examples=500)
def test_no_value_of_any_type_raises_anything_but_invalid_request(field, value):
    with contextlib.suppress(InvalidRequest):
        params = SamplingParams(**{field: value})
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


NESTED = {
    "structured_outputs",
    "grammar",
    "thinking",
    "repetition_detection",
    "dry",
    "xtc",
}  # a map or list on the wire, an object of their own in Python


@given(field=st.sampled_from([field for field in FIELDS if field not in NESTED]), value=ANYTHING)
@settings(max_examples=500)
def test_the_wire_refuses_what_python_refuses(field, value):
    try:
        frame = msgspec.msgpack.encode({field: value})
    except OverflowError:  # msgpack ends at 64 bits
        return
    try:
        decoded = msgspec.msgpack.decode(frame, type=SamplingParams)
    except msgspec.ValidationError:
        return
    assert decoded == SamplingParams(**{field: value})


def test_lists_are_bounded_and_their_entries_checked():
    too_much = {
        "stop": [["x"] * (MAX_STOP_STRINGS + 1), ["x" * (MAX_STOP_STRING_CHARS + 1)], [""], [1], {"a": 1}],
        "bad_words": [["x"] * (sampling_params.MAX_BAD_WORDS + 1), [""], [None]],
        "stop_token_ids": [range(5), [-1], [MAX_TOKEN_ID + 1], [1.0], [True], list(range(MAX_STOP_TOKEN_IDS + 1))],
        "logprob_token_ids": [range(3), [-1], [1.0], "x"],
        "allowed_token_ids": [[], [-1], list(range(sampling_params.MAX_ALLOWED_TOKEN_IDS + 1))],
        "logit_bias": [
            dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0),
            {-1: 1.0},
            {1: math.nan},
            {1: math.inf},
            {1: "x"},
        ],
    }
    for field, values in too_much.items():
        for value in values:
            with pytest.raises(InvalidRequest) as caught:
                SamplingParams(**{field: value})
            assert caught.value.param == field
    for words in ([[]], [[-1]], [1], [[1] * 257], [[1]] * 513):
        with pytest.raises(InvalidRequest) as caught:
            SamplingParams(bad_words_token_ids=words)
        assert caught.value.param == "bad_words_token_ids"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ((-1, (1,), (2,)), "max_tokens"),
        ((True, (1,), (2,)), "max_tokens"),
        ((1, (), (2,)), "begin"),
        ((1, [1], (2,)), "begin"),
        ((1, (1,), (2,) * 33), "end"),
        ((1, (1,), (-2,)), "end"),
        ((1, (1,), (2,), -1), "num_prompt_tokens"),
    ],
)
def test_an_invalid_thinking_budget_is_refused_by_field(fields, name):
    with pytest.raises(InvalidRequest, match=rf"thinking\.{name} is "):
        ThinkingBudget(*fields)
    with pytest.raises(InvalidRequest, match="it must be a ThinkingBudget"):
        SamplingParams(thinking=fields)


@pytest.mark.parametrize(
    ("make_params", "field"),
    [
        (lambda text: SamplingParams(stop=["ok", text]), "stop"),
        (lambda text: SamplingParams(bad_words=[text]), "bad_words"),
        (lambda text: Dry(multiplier=1.0, sequence_breakers=("é", text)), "dry_sequence_breakers"),
        (lambda text: StructuredOutputsParams(choice=["é", text]), "structured_outputs.choice"),
        (lambda text: StructuredOutputsParams(regex=text), "structured_outputs.regex"),
        (lambda text: StructuredOutputsParams(json=f'{{"const": "{text}"}}'), "structured_outputs.json"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_field(make_params, field):
    """Neither the wire nor a tokenizer can carry it."""
    make_params("🎉")
    with pytest.raises(InvalidRequest, match="has half of a surrogate pair") as refused:
        make_params("a\ud83c")
    assert refused.value.param == field


def test_fields_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidRequest, match="min_tokens is 5, above max_tokens=4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_named_tokens_have_as_many_logprobs():
    assert SamplingParams(logprob_token_ids=[4, 5]).logprobs == 2
    assert SamplingParams(logprob_token_ids=[4], logprobs=1).logprob_token_ids == (4,)
    for fields in ({"logprobs": 3}, {"logprobs": -1}, {"logprob_token_ids": range(129)}):
        with pytest.raises(InvalidRequest) as caught:
            SamplingParams(**{"logprob_token_ids": [4, 5], **fields})
        assert caught.value.param == "logprob_token_ids"


def test_a_single_stop_string_counts_as_a_list_of_one():
    assert SamplingParams(stop="\n").stop == ("\n",)
    assert SamplingParams(stop=None).stop == ()


def test_token_ids_outside_the_vocabulary_are_refused_by_name():
    SamplingParams(stop_token_ids=[99], logit_bias={0: 1.0}, allowed_token_ids=[99]).check_vocabulary(100)
    for field, value in (
        ("stop_token_ids", [100]),
        ("allowed_token_ids", [5, 100]),
        ("logit_bias", {100: 1.0}),
        ("bad_words_token_ids", [[5, 100]]),
        ("logprob_token_ids", [3, 100]),
    ):
        with pytest.raises(InvalidRequest, match=r"names token 100; the vocabulary is 0\.\.99"):
            SamplingParams(**{field: value}).check_vocabulary(100)


def test_the_table_has_every_field():
    listed = {
        *BOUNDS,
        *BOOLEANS,
        "stop",
        "stop_token_ids",
        "bad_words",
        "bad_words_token_ids",
        "output_kind",
        "logprob_token_ids",
        "logits_processors",
    }
    assert listed | {"logit_bias", "allowed_token_ids", *NESTED} == set(FIELDS)


def test_finish_reasons_have_the_spelling_of_the_api_and_are_true():
    assert all(FinishReason)
    assert [str(reason) for reason in FinishReason] == [reason.api_name for reason in FinishReason]
    assert [reason.api_name for reason in FinishReason] == ["stop", "length", "abort", "error", "repetition"]


def test_none_stands_for_the_default_except_where_it_means_no_limit():
    fields = dict.fromkeys(SamplingParams.__struct_fields__)
    assert SamplingParams(**fields) == SamplingParams(max_tokens=None)


def test_a_clone_is_equal_and_its_fields_may_be_set():
    params = SamplingParams(temperature=0.5, logit_bias={5: 1.0}, stop="x", max_tokens=None)
    clone = params.clone()
    assert clone == params
    clone.max_tokens, clone.logit_bias[6] = 3, 2.0
    assert (params.max_tokens, params.logit_bias) == (None, {5: 1.0})
    assert clone.clone().checked() == SamplingParams(
        temperature=0.5, logit_bias={5: 1.0, 6: 2.0}, stop="x", max_tokens=3
    )
    clone.top_p = 2
    with pytest.raises(InvalidRequest, match="top_p is 2"):
        clone.checked()


def test_optional_fields_are_read_as_in_the_body_of_a_request():
    params = SamplingParams.from_optional(temperature=None, logit_bias={"5": 200, 6: -1}, stop=None)
    assert params == SamplingParams(logit_bias={5: 100.0, 6: -1.0})
    for wrong in ({"x": 1}, {"5": "much"}, [5]):
        with pytest.raises(InvalidRequest, match="logit_bias"):
            SamplingParams.from_optional(logit_bias=wrong)


def test_keywords_of_vllm_without_an_effect_are_accepted():
    nothing = {"extra_args": {}, "watermarking": False, "stream_interval": 1}
    nothing |= {"skip_clone": True, "use_beam_search": False, "truncate_prompt_tokens": None}
    assert SamplingParams(n=2, temperature=1.0, **nothing) == SamplingParams(n=2, temperature=1.0)
    assert PoolingParams(extra_kwargs=None, requires_token_ids=False, use_activation=None) == PoolingParams()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"temprature": 1}, "SamplingParams has no temprature; did you mean temperature?"),
        ({"xyz": 1}, "SamplingParams has no xyz"),
        (
            {"extra_args": {"a": 1}},
            "extra_args is {'a': 1}, which is not supported: dry=Dry(…) and xtc=Xtc(…) are fields",
        ),
        ({"truncate_prompt_tokens": 3}, "pass tokenization_kwargs={'truncate_prompt_tokens': …} to the method"),
        ({"guided_decoding": "x"}, "use structured_outputs=StructuredOutputsParams(…)"),
        ({"watermarking": 0}, "watermarking is 0, which is not supported: outputs have no watermark"),
    ],
)
def test_other_keywords_are_refused_with_what_to_use_instead(fields, reason):
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**fields)
    assert reason in str(refused.value)
    assert refused.value.param == next(iter(fields))


def test_pooling_params_name_what_to_use_instead():
    with pytest.raises(InvalidRequest, match="normalize is False, which is not supported: use use_activation"):
        PoolingParams(normalize=False)


def test_the_wire_refuses_keywords_that_are_no_fields():
    with pytest.raises(msgspec.ValidationError, match="unknown field `skip_clone`"):
        msgspec.json.decode(b'{"skip_clone": true}', type=SamplingParams)

"""Converts the prompts and parameters that are passed to LLM, in all their forms, to lists of one type."""

import difflib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import ChangeableSamplingParams, RequestOutputKind, SamplingParams

from ..client.request_terms import instance_of
from ..text.breakers import with_breakers
from ..text.tokenizer import Tokenizer, words_to_token_ids
from .chat_message import ChatReading

_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}
_NO_MEDIA, _ENCODER = "only text is served", "models with an encoder for the prompt are not served"
_UNSUPPORTED_KEYS = {  # of vLLM's prompts, which generic programs set to None
    "decoder_prompt": _ENCODER,
    "encoder_prompt": _ENCODER,
    "mm_processor_kwargs": _NO_MEDIA,
    "multi_modal_data": _NO_MEDIA,
    "multi_modal_uuids": _NO_MEDIA,
    "prompt_embeds": "a prompt is text or tokens",
    "token_type_ids": "LLM.score makes the types of a pair's tokens",
}
_TYPES = ("text", "token")  # what vLLM itself writes as the `type` of a prompt
_VLLM_KEYWORDS: dict[str, tuple[tuple[Any, ...], str]] = {  # keyword of vLLM: (accepted values, why no others are)
    "chat_template_content_format": (("auto", "string"), "a template gets the parts of a content as one text"),
    "mm_processor_kwargs": (({},), _NO_MEDIA),
    "use_tqdm": ((True, False), "this method computes nothing"),
}


class Tokenization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tokenization_kwargs`."""

    add_special_tokens: bool | None = None  # around a text; None: for prompts but not for conversations
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None  # -1: as many as fit with the output
    truncation_side: Literal["left", "right"] | None = None  # the side that is cut; None: left

    def cut(self, token_ids: list[int]) -> list[int]:
        kept = self.truncate_prompt_tokens
        if kept is None or len(token_ids) <= kept:
            return token_ids
        return token_ids[:kept] if self.truncation_side == "right" else token_ids[-kept:]


WHOLE = -1  # of truncate_prompt_tokens
AS_USUAL = Tokenization()


@dataclass(slots=True)
class Prompt:
    """A text, tokens, or both; if both, the tokens are used."""

    text: str | None
    token_ids: list[int] | None
    cache_salt: str = ""
    chat: ChatReading | None = None  # for the prompt of a conversation
    tokenization: Tokenization = AS_USUAL

    def truncate_to(self, max_model_len: int, max_tokens: int | None) -> None:
        """Replace -1, as many tokens as fit with the output, by their number."""
        if self.tokenization.truncate_prompt_tokens == WHOLE:
            most = max(1, max_model_len - (max_tokens or 1))
            self.tokenization = msgspec.structs.replace(self.tokenization, truncate_prompt_tokens=most)


def parse_prompts(prompts: Any, tokenization: Tokenization = AS_USUAL) -> list[Prompt]:
    """Parse one prompt or a list of prompts: texts, tokens, or dicts with `prompt` or `prompt_token_ids`."""
    found = _parse_all(prompts)
    for prompt in found:
        prompt.tokenization = tokenization
    return found


def _parse_all(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str | Mapping) or (
        isinstance(prompts, Sequence) and len(prompts) and isinstance(prompts[0], Integral)
    ):
        return [_parse(prompts)]
    if not isinstance(prompts, Sequence):
        raise InvalidRequest(
            f"prompts is of type {type(prompts).__name__}; pass a string, token ids, or a list of these", "prompts"
        )
    return [_parse(prompt) for prompt in prompts]


def _parse(prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(checked_text(prompt), None)
    if isinstance(prompt, Mapping):
        given = {key for key, value in prompt.items() if not _is_ignored(key, value)}
        if unsupported := sorted(given & _UNSUPPORTED_KEYS.keys()):
            raise InvalidRequest(f"a prompt has {unsupported[0]!r}: {_UNSUPPORTED_KEYS[unsupported[0]]}", "prompts")
        if unknown := sorted(given - _PROMPT_KEYS, key=str):
            known = ", ".join(sorted(_PROMPT_KEYS))
            raise InvalidRequest(f"a prompt has {unknown[0]!r}; it may have {known}", "prompts")
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is None and ids is None:
            raise InvalidRequest("a prompt has neither 'prompt' nor 'prompt_token_ids'", "prompts")
        text, ids = None if text is None else checked_text(text), None if ids is None else _token_ids(ids)
        salt = prompt.get("cache_salt")
        return Prompt(text, ids, "" if salt is None else salt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):  # which are a sequence of integers
        return Prompt(None, _token_ids(prompt))
    raise InvalidRequest(f"a prompt is of type {type(prompt).__name__}; pass a string, token ids, or a dict", "prompts")


def _is_ignored(key: Any, value: Any) -> bool:
    """Whether an entry of a prompt has no effect."""
    return (key in _UNSUPPORTED_KEYS and (value is None or value == {})) or (
        key == "type" and isinstance(value, str) and value in _TYPES
    )


def checked_text(text: Any, name: str = "prompt") -> str:
    """`text`. Raises InvalidRequest for what the tokenizer does not take, naming the argument."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{name} is {text!r:.100}; it must be a string", name)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InvalidRequest(f"{name} has {half!a}, half of a surrogate pair, at {error.start}", name) from None
    return text


def _token_ids(values: Any) -> list[int]:
    """The ids as a list. The client knows the vocabulary, and checks that they are in it."""
    try:
        ids = array("i", values)  # of anything that converts to integers, such as those of numpy
    except (TypeError, ValueError, OverflowError):
        ids = None
    if ids is None or isinstance(values, bytes | bytearray) or min(ids, default=0) < 0 or bool in map(type, values):
        raise InvalidRequest(
            f"prompt_token_ids is {values!r:.100}; it must be a list of token ids, integers from 0 to {2**31 - 1}",
            "prompt_token_ids",
        )
    return ids.tolist()


def tokenization(kwargs: Mapping[str, Any] | None) -> Tokenization:
    """Raises InvalidRequest."""
    given = instance_of(Mapping, {} if kwargs is None else kwargs, "tokenization_kwargs")  # type: ignore[type-abstract]
    try:
        found = msgspec.convert(dict(given), Tokenization)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter of half a surrogate pair
        known = ", ".join(Tokenization.__struct_fields__)
        raise InvalidRequest(f"tokenization_kwargs: {error}; it may have {known}", "tokenization_kwargs") from None
    if found.truncate_prompt_tokens == 0:
        raise InvalidRequest(
            "tokenization_kwargs: truncate_prompt_tokens is 0; it must be at least 1, or -1 for as many as fit",
            "tokenization_kwargs",
        )
    return found


def check_keywords(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """`known`: the method's own parameters. Raises InvalidRequest for an unknown keyword or an unsupported value."""
    for name, value in given.items():
        if name not in _VLLM_KEYWORDS:
            near = difflib.get_close_matches(name, [*known, *_VLLM_KEYWORDS], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest(f"{name} is not a keyword of this method{hint}", name)
        values, why = _VLLM_KEYWORDS[name]
        if value is not None and value not in values:
            allowed = " or ".join(repr(each) for each in (*values, None))
            raise InvalidRequest(f"{name} is {value!r:.100}: {why}; leave it out, or {allowed}", name)


def one_each(values: Any, count: int, name: str) -> list[Any]:
    """One value per prompt, from one value for all of them or a list with one each. Raises InvalidRequest."""
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise InvalidRequest(
            f"{name} has {len(values)} entries for {count} prompts; pass one value, or one per prompt", name
        )
    return list(values)


def prepared(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """Check the parameters and add the token ids of bad words and DRY sequence breakers.

    Raises InvalidRequest.
    """
    params = instance_of(SamplingParams, params, "sampling_params")
    if isinstance(params, ChangeableSamplingParams):
        params = params.checked()
    params = msgspec.structs.replace(params, output_kind=RequestOutputKind.CUMULATIVE)
    if params.bad_words:
        ids = words_to_token_ids(tokenizer, params.bad_words)
        params = msgspec.structs.replace(params, bad_words_token_ids=ids)
    params = msgspec.structs.replace(params, dry=with_breakers(params.dry, tokenizer))
    if params.prompt_logprobs is not None:  # cached prompt tokens are not computed, so they have no logprobs
        params = msgspec.structs.replace(params, skip_reading_prefix_cache=True)
    return params

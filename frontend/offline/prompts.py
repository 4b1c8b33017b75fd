"""What people pass to LLM as prompts and parameters, in all its spellings, as one list of equal things."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..structured_outputs.helper_messages import added_tokens
from ..structured_outputs.in_process import with_grammar
from ..text.tokenizer import Tokenizer, words_to_token_ids

_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


@dataclass(slots=True)
class Prompt:
    """A text, or its tokens, or both: then the tokens count."""

    text: str | None
    token_ids: list[int] | None
    cache_salt: str = ""
    begins_reasoning: bool | None = None  # its end has begun the output's; None: as its tokens say


class ChangeableSamplingParams(SamplingParams, frozen=False, eq=False):  # type: ignore[misc]  # msgspec allows it
    """SamplingParams whose fields may be set, as vLLM's may; LLM checks them when it is given them."""

    def checked(self) -> SamplingParams:
        """Raises InvalidRequest naming the field, the value and the limit."""
        return SamplingParams(**{name: getattr(self, name) for name in self.__struct_fields__})

    def __eq__(self, other: object) -> bool:
        names = self.__struct_fields__
        return isinstance(other, SamplingParams) and all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]


def parse_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or a list: a text, tokens, or a dict with `prompt` or `prompt_token_ids`."""
    if isinstance(prompts, str | Mapping) or (
        isinstance(prompts, Sequence) and len(prompts) and isinstance(prompts[0], int)
    ):
        return [_parse(prompts)]
    if not isinstance(prompts, Sequence):
        raise InvalidRequest(
            f"prompts is a {type(prompts).__name__}; give a text, tokens, or a list of them", "prompts"
        )
    return [_parse(prompt) for prompt in prompts]


def _parse(prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(prompt, None)
    if isinstance(prompt, Mapping):
        if unknown := sorted(set(prompt) - _PROMPT_KEYS):
            raise InvalidRequest(f"a prompt has {unknown[0]!r}; it may have {sorted(_PROMPT_KEYS)}", "prompts")
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is None and ids is None:
            raise InvalidRequest("a prompt has neither 'prompt' nor 'prompt_token_ids'", "prompts")
        return Prompt(text, None if ids is None else list(ids), prompt.get("cache_salt") or "")
    if isinstance(prompt, Sequence):
        return Prompt(None, list(prompt))
    raise InvalidRequest(f"a prompt is a {type(prompt).__name__}; give a text, tokens, or a dict", "prompts")


def check_no_lora(lora_request: object) -> None:
    """Programs written for vLLM pass None by name."""
    if lora_request is not None:
        raise InvalidRequest("LoRA adapters are not served; leave lora_request out, or None", "lora_request")


def one_each(values: Any, count: int, name: str) -> list[Any]:
    """`values` for each of `count` prompts: one for all, or a list with one each."""
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise InvalidRequest(f"{name} has {len(values)} entries for {count} prompts; give one, or one each", name)
    return list(values)


def prepared(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """With what the engine wants to have in tokens."""
    if isinstance(params, ChangeableSamplingParams):
        params = params.checked()
    if params.bad_words:
        ids = words_to_token_ids(tokenizer, params.bad_words)
        params = msgspec.structs.replace(params, bad_words_token_ids=ids)
    params = with_grammar(params, added_tokens(tokenizer))
    if params.prompt_logprobs is not None:  # cached prompt tokens are not computed, so they have no logprobs
        params = msgspec.structs.replace(params, skip_reading_prefix_cache=True)
    return params

"""Translates `thinking_token_budget` to the tokens of one model, for HTTP and `LLM` alike."""

from collections.abc import Collection, Sequence

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.samplers import ThinkingBudget
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..text.tokenizer import Tokenizer
from .detection import ModelFormats

FIELD = "thinking_token_budget"
_Tag = tuple[int, ...]


def with_thinking(
    params: SamplingParams,
    formats: ModelFormats,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    begins: bool | None = None,
    calls: Collection[str] = (),
) -> SamplingParams:
    """The parameters with token ids in place of tags, for the engine. `begins`: whether the prompt ends in reasoning;
    None: derived from its tokens. `calls`: tags that begin a call and end reasoning, too.

    Raises InvalidRequest if the model's tags are unknown or not single tokens.
    """
    limit = params.thinking_token_budget
    if limit is None:
        return params
    thinking = None
    if limit >= 0:
        begin, end = _tags(limit, formats, tokenizer)
        begun = _behind_last(prompt, begin)
        is_found = begun > _behind_last(prompt, end)
        if begins is None:
            begins = is_found
        # The tag in a continued message may be text instead of the token: then the budget begins with the output.
        num_begun = len(prompt) - begun if is_found else 0
        ends = sorted(token for tag in calls if (token := tokenizer.token_id(tag)) is not None)
        thinking = ThinkingBudget(limit, begin, end, num_begun if begins else None, tuple(ends))
    return msgspec.structs.replace(params, thinking_token_budget=None, thinking=thinking)


def _tags(limit: int, formats: ModelFormats, tokenizer: Tokenizer) -> tuple[_Tag, _Tag]:
    reasoning = formats.reasoning
    if (channels := formats.channels) is not None and channels.reasoning:
        begin = tuple(tokenizer.encode(channels.reasoning, add_special_tokens=False))
        end = tokenizer.token_id(channels.end)
    elif reasoning is not None:
        first, end = tokenizer.token_id(reasoning.begin), tokenizer.token_id(reasoning.end)
        begin = () if first is None else (first,)
    else:
        raise InvalidRequest(
            f"{FIELD} is {limit}, but this model's chat template has no known reasoning tags; leave it out, or name "
            "their format with --reasoning-parser",
            FIELD,
        )
    if end is None or not begin:
        tags = "" if reasoning is None else f" {reasoning.begin} and {reasoning.end}"
        raise InvalidRequest(
            f"{FIELD} is {limit}, but the tags{tags} are not single tokens of this model, so the end of its reasoning "
            "cannot be detected; leave it out",
            FIELD,
        )
    return begin, (end,)


def _behind_last(tokens: Sequence[int], tag: _Tag) -> int:
    """Where the last `tag` ends in `tokens`; 0 if there is none."""
    backwards, start = tokens[::-1], 0
    while True:
        try:
            start = backwards.index(tag[-1], start) + 1
        except ValueError:
            return 0
        end = len(tokens) - start + 1
        if tuple(tokens[max(0, end - len(tag)) : end]) == tag:
            return end

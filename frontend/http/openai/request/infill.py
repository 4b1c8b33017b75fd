"""`suffix`: an output that fills the gap between the prompt and the suffix."""

from collections.abc import Sequence

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ....admission import MAX_TOKENS_PER_REQUEST
from ....text.fill_in_middle import FillInMiddle, fill_in_middle
from ...service import Service
from .prompts import prompts_tokens
from .schemas import CompletionRequest
from .truncation import Limit

FIELD = "suffix"


async def with_suffix(
    service: Service, body: CompletionRequest, given: Sequence[str | list[int]], limit: Limit
) -> tuple[CompletionRequest, list[list[int]]]:
    """(the body, with the tokens that end an infill added to its stop tokens; the tokens of the prompts).

    Raises InvalidRequest for a model without infill tokens.
    """
    add_special = True if body.add_special_tokens is None else body.add_special_tokens
    if not body.suffix:
        return body, await prompts_tokens(service, given, add_special, limit)
    marks = _marks(service, body)
    [suffix] = await prompts_tokens(service, [body.suffix], False, limit, FIELD)
    if (num_tokens := len(given) * len(suffix)) > MAX_TOKENS_PER_REQUEST:
        raise InvalidRequest(
            f"suffix has {len(suffix)} tokens, {num_tokens} with {len(given)} prompts; a request may have at most "
            f"{MAX_TOKENS_PER_REQUEST}",
            FIELD,
        )
    prompts = [marks.prompt(ids, suffix) for ids in await prompts_tokens(service, given, False, limit)]
    if add_special:
        prompts = [service.tokenizer.with_special_tokens(ids) for ids in prompts]
    stops = [*(body.stop_token_ids or ()), *marks.ends]
    return msgspec.structs.replace(body, stop_token_ids=stops), prompts


def _marks(service: Service, body: CompletionRequest) -> FillInMiddle:
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise InvalidRequest(f"suffix and {name} are both given; leave one out", FIELD)
    marks = fill_in_middle(service.tokenizer)
    if marks is None:
        raise InvalidRequest(
            "suffix: this model has no fill-in-the-middle tokens; leave it out to continue the prompt", FIELD
        )
    return marks

"""Turns the prompt or the messages of a body into token ids that fit the model."""

from collections.abc import Sequence

from paged_serve.protocol.errors import InvalidRequest

from ....admission import (
    MAX_TOKENS_PER_REQUEST,
    check_token_ids,
    too_many_tokens,
)
from ....conversation.conversation import ConversationFields, TemplateInput, template_input
from ....conversation.prompt_encoder import without
from ....text.off_loop import LONG
from ...service import Service
from . import fields, schemas
from .truncation import Limit

END_CHARS = 64  # the part of a prompt in which a template may begin the output's reasoning


def split_prompt(prompt: schemas.Prompt, limit: Limit) -> list[str | list[int]]:
    """One entry per prompt: a text, or its tokens. A list of integers is one prompt; any other list is one prompt
    per entry."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):  # a list of millions is refused by its length, before its entries are read
        limit.check_length(len(prompt), "prompt")
    elif len(prompt) > fields.MAX_PROMPTS:
        raise InvalidRequest(f"prompt has {len(prompt)} prompts; at most {fields.MAX_PROMPTS} are accepted", "prompt")
    return of_one_type(prompt, "prompt")


def of_one_type(given: Sequence[str | int | list[int]], field: str) -> list[str | list[int]]:
    """The prompts in a list that is not empty. Raises InvalidRequest if its entries have different types."""
    types = set(map(type, given))
    if len(types) != 1:
        raise InvalidRequest(
            f"{field} mixes types; send only strings, only token ids, or only lists of token ids", field
        )
    return [given] if types == {int} else given  # type: ignore[list-item, return-value]


async def prompts_tokens(
    service: Service, prompts: Sequence[str | list[int]], add_special_tokens: bool, limit: Limit, field: str = "prompt"
) -> list[list[int]]:
    """Each prompt as token ids, truncated if the request asks for it."""
    for prompt in prompts:
        if isinstance(prompt, str):
            limit.check_text(prompt, service.longest_token_chars, field)
        else:
            limit.check_length(len(prompt), field)

    def encode() -> list[list[int]]:
        vocab_size, num_tokens = service.engine.limits.vocab_size, 0
        found = []
        for prompt in prompts:
            if isinstance(prompt, str):
                check_number_of_tokens(service, prompt, field, limit)
                prompt = service.encoder.encode_prompt(prompt, add_special_tokens)
            else:
                check_token_ids(prompt, vocab_size, field)
            found.append(limit.cut(prompt))
            num_tokens += len(found[-1])
            if num_tokens > max(MAX_TOKENS_PER_REQUEST, service.max_model_len):
                raise InvalidRequest(
                    f"the first {len(found)} prompts have {num_tokens} tokens; a request may have at most "
                    f"{MAX_TOKENS_PER_REQUEST}",
                    "prompt",
                )
        return found

    long = service.encoder.may_take_long(prompts)
    return await service.off_loop(LONG if long else sum(map(len, prompts)), encode)


async def chat_tokens(
    service: Service,
    body: ConversationFields,
    raw: bytes,
    *,
    use_tools: bool = True,
    add_special_tokens: bool = False,
    moment: float | None = None,
    limit: Limit | None = None,
) -> tuple[list[int], str]:
    """(the token ids of the conversation, truncated if requested; the last END_CHARS characters of their text).

    The conversation is `body`, whose JSON is `raw`, rendered as of the time `moment`.
    """
    encoder, limit = service.encoder, limit or Limit(service.max_model_len)
    rendered, mark = await _rendered(service, body, raw, use_tools, moment)
    text = without(rendered, mark)
    limit.check_text(text, service.longest_token_chars, "messages")

    def encode() -> tuple[list[int], str]:
        check_number_of_tokens(service, text, "messages", limit)
        ids = encoder.encode_chat(rendered, mark, add_special_tokens)
        kept = limit.cut(ids)
        if len(kept) == len(ids) or limit.side == "left":
            return kept, text[-END_CHARS:]
        return kept, service.tokenizer.decode(kept[-END_CHARS:], skip_special_tokens=False)[-END_CHARS:]

    return await service.off_loop(LONG if mark else len(text), encode)


async def chat_text(service: Service, body: ConversationFields, raw: bytes) -> str:
    """The conversation as the chat template renders it now."""
    rendered, mark = await _rendered(service, body, raw, use_tools=True, moment=None)
    return without(rendered, mark)


async def _rendered(
    service: Service, body: ConversationFields, raw: bytes, use_tools: bool, moment: float | None
) -> tuple[str, str]:
    """(the rendered text, the mark that precedes each special token that the template wrote)."""
    template, encoder = service.chat_template(), service.encoder

    def prepared() -> tuple[TemplateInput, str]:
        return encoder.prepared(template_input(body, raw, service.template_kwargs, use_tools=use_tools))

    given, mark = await service.off_loop(len(raw), prepared)
    return await template.render(given, moment=moment, mark=mark), mark


def check_number_of_tokens(service: Service, text: str, field: str, limit: Limit) -> None:
    """Raises InvalidRequest for a text that is far too long, before its tokens take memory."""
    if at_least := service.tokenizer.tokens_beyond(text, limit.max_tokens):
        raise too_many_tokens(at_least, text, limit.max_tokens, field)

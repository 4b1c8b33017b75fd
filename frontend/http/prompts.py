"""From the prompt or messages of a body to token ids that fit the model."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ..admission import (
    MAX_TOKENS_PER_REQUEST,
    check_text_can_fit,
    check_token_ids,
    fitting_max_tokens,
    too_many_tokens,
)
from . import fields, schemas
from .foreign_fields import check_number_of_nodes
from .service import Service

RESERVED_KWARGS = {
    *("self", "messages", "tools", "documents", "add_generation_prompt", "tokenize", "chat_template"),
    *("continue_final_message", "moment"),
}


class Conversation(Protocol):
    """The fields that the chat template reads."""

    @property
    def messages(self) -> schemas.Messages: ...
    @property
    def tools(self) -> schemas.Tools | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> fields.TemplateKwargs | None: ...


def split_prompt(prompt: schemas.Prompt, max_model_len: int) -> list[str | list[int]]:
    """One entry a prompt: a text, or its tokens. A list of integers is one prompt, any other list one prompt each."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):  # millions are refused by their number, before anybody looks at each
        fitting_max_tokens(len(prompt), None, None, max_model_len, "prompt")
    elif len(prompt) > fields.MAX_PROMPTS:
        raise InvalidRequest(f"prompt has {len(prompt)} prompts; at most {fields.MAX_PROMPTS} are accepted", "prompt")
    kinds = set(map(type, prompt))
    if len(kinds) != 1:
        raise InvalidRequest(
            "prompt mixes texts and tokens; give one kind: texts, tokens, or lists of tokens", "prompt"
        )
    if kinds == {int}:
        return [prompt]  # type: ignore[list-item]
    return prompt  # type: ignore[return-value]


async def prompts_tokens(
    service: Service, prompts: Sequence[str | list[int]], add_special_tokens: bool
) -> list[list[int]]:
    """Each prompt as token ids."""
    for prompt in prompts:
        if isinstance(prompt, str):
            check_text_can_fit(prompt, service.longest_token_chars, service.max_model_len, "prompt")
        else:
            fitting_max_tokens(len(prompt), None, None, service.max_model_len, "prompt")

    def encode() -> list[list[int]]:
        vocab_size, num_tokens = service.engine.limits.vocab_size, 0
        found = []
        for prompt in prompts:
            if isinstance(prompt, str):
                prompt = encode_text(service, prompt, add_special_tokens, "prompt")
            else:
                check_token_ids(prompt, vocab_size, "prompt")
            found.append(prompt)
            num_tokens += len(prompt)
            if num_tokens > max(MAX_TOKENS_PER_REQUEST, service.max_model_len):
                raise InvalidRequest(
                    f"the {len(found)} first prompts have {num_tokens} tokens; at most {MAX_TOKENS_PER_REQUEST} may "
                    "come in one request",
                    "prompt",
                )
        return found

    return await service.off_loop(sum(map(len, prompts)), encode)


async def chat_tokens(
    service: Service,
    body: Conversation,
    size: int,
    *,
    use_tools: bool = True,
    add_special_tokens: bool = False,
    moment: float | None = None,
) -> list[int]:
    """The conversation as the model's template writes it at that moment. `size`: of the body in bytes."""
    kwargs = _template_kwargs(body.chat_template_kwargs)
    template = service.chat_template()
    goes_on = bool(body.continue_final_message)
    if goes_on and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt are both true; give one", "continue_final_message"
        )
    begins_turn = not goes_on if body.add_generation_prompt is None else body.add_generation_prompt

    def plain() -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        check_number_of_nodes(_written_arguments(body.messages).encode())
        messages = [_for_template(message, f"messages[{i}]") for i, message in enumerate(body.messages)]
        for i, tool in enumerate(body.tools or ()):
            check_depth(tool.function.parameters, f"tools[{i}].function.parameters")
        return messages, msgspec.to_builtins(body.tools) if use_tools and body.tools else None

    messages, tools = await service.off_loop(size, plain)
    text = await template.render(
        messages,
        tools=tools,
        add_generation_prompt=begins_turn,
        continue_final_message=goes_on,
        moment=moment,
        kwargs=kwargs,
    )
    check_text_can_fit(text, service.longest_token_chars, service.max_model_len, "messages")
    return await service.off_loop(len(text), encode_text, service, text, add_special_tokens, "messages")


def encode_text(service: Service, text: str, add_special_tokens: bool, field: str) -> list[int]:
    """Raises InvalidRequest for a text that is much too long, before the memory that its tokens need is taken."""
    if at_least := service.tokenizer.tokens_beyond(text, service.max_model_len):
        raise too_many_tokens(at_least, text, service.max_model_len, field)
    return service.tokenizer.encode(text, add_special_tokens)


def check_depth(value: object, field: str, levels: int = fields.MAX_JSON_DEPTH) -> None:
    """Raises InvalidRequest when lists and objects stand in one another more than `levels` deep."""
    if not isinstance(value, (dict, list)):
        return
    if not levels:
        raise InvalidRequest(f"{field} is nested more than {fields.MAX_JSON_DEPTH} levels deep", field)
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            check_depth(inner, field, levels - 1)


def _template_kwargs(kwargs: fields.TemplateKwargs | None) -> dict[str, Any]:
    for name in kwargs or {}:
        if not name.isidentifier() or len(name) > 64 or name in RESERVED_KWARGS:
            raise InvalidRequest(
                f"chat_template_kwargs cannot set {name[:64]!r}; it must be a name of the template's own",
                "chat_template_kwargs",
            )
    return dict(kwargs or {})


def _for_template(message: schemas.ChatMessage, place: str) -> dict[str, Any]:
    """A message as templates expect it: content a string, arguments of earlier calls an object."""
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{place}.content is required for the role {message.role!r}", f"{place}.content")
    content = _text(message.content) if message.content is not None or message.tool_calls else ""
    plain: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = [_call_for_template(call, place) for call in message.tool_calls]
    return plain


def _written_arguments(messages: schemas.Messages) -> str:
    """JSON within JSON, of all earlier calls: the count of the body's own has not seen into it."""
    calls = [call.function for message in messages for call in message.tool_calls or ()]
    return "".join(function.arguments for function in calls if isinstance(function.arguments, str))


def _call_for_template(call: schemas.ToolCall, place: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise InvalidRequest(
                f"the arguments of the call of {call.function.name[:64]!r} are not a JSON object", "messages"
            ) from None
    check_depth(arguments, f"{place}.tool_calls")
    function = {"name": call.function.name, "arguments": arguments or {}}
    return {"id": call.id, "type": call.type, "function": function}


def _text(content: str | list[schemas.TextPart] | None) -> str | None:
    return "\n".join(part.text for part in content) if isinstance(content, list) else content

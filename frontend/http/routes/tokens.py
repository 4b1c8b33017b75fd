"""The routes that convert between text and tokens, without the engine."""

from pathlib import Path

from paged_serve.protocol.errors import InvalidRequest

from ...admission import check_token_ids
from ...conversation.strict_json import field_names
from ...text.off_loop import LONG
from ...text.tokenizer import read_json
from ..exchange.exchange import Exchange
from ..openai import answers
from ..openai.request import schemas
from ..openai.request.custom_tools import without_custom_tools
from ..openai.request.prompts import chat_text, chat_tokens
from ..openai.request.truncation import limit_of
from ..service import Service

MAX_LISTED_TOKENS = 1 << 18  # the model's context length if that is greater


async def tokenize(service: Service, exchange: Exchange) -> None:
    """Turn a text, or a conversation rendered by the chat template, into token ids."""
    raw = await exchange.body()
    if "messages" in await service.off_loop(len(raw), field_names, raw):
        raw = await service.off_loop(len(raw), without_custom_tools, raw)
        chat, _, _ = await service.decoded(schemas.TokenizeChatRequest, raw)
        special, limit = bool(chat.add_special_tokens), limit_of(service, chat, 0)
        ids, _ = await chat_tokens(service, chat, raw, add_special_tokens=special, limit=limit)
        names = chat.return_token_strs
    else:
        text, _, _ = await service.decoded(schemas.TokenizeTextRequest, raw)
        special = True if text.add_special_tokens is None else text.add_special_tokens
        limit = limit_of(service, text, 0)
        long = service.encoder.may_take_long([text.prompt])
        ids = await service.off_loop(LONG if long else len(text.prompt), _tokens, service, text.prompt, special)
        ids, names = limit.cut(ids), text.return_token_strs
    answer = answers.Tokens(count=len(ids), max_model_len=service.max_model_len, tokens=ids)
    if names:
        answer.token_strs = await service.off_loop(len(ids), lambda: [*map(service.tokenizer.token_text, ids)])
    await exchange.send_json(answer)


async def detokenize(service: Service, exchange: Exchange) -> None:
    body, _, _ = await service.decoded(schemas.DetokenizeRequest, await exchange.body())

    def decode() -> str:
        _check_number_of_tokens(service, len(body.tokens), "tokens")
        check_token_ids(body.tokens, service.engine.limits.vocab_size, "tokens")
        return service.tokenizer.decode(body.tokens, skip_special_tokens=False)

    await exchange.send_json(answers.Text(prompt=await service.off_loop(len(body.tokens), decode)))


async def apply_template(service: Service, exchange: Exchange) -> None:
    """Render a conversation with the model's chat template."""
    raw = await exchange.body()
    raw = await service.off_loop(len(raw), without_custom_tools, raw)
    body, _, _ = await service.decoded(schemas.ApplyTemplateRequest, raw)
    await exchange.send_json(answers.Text(prompt=await chat_text(service, body, raw)))


def _tokens(service: Service, text: str, add_special_tokens: bool) -> list[int]:
    most = max(MAX_LISTED_TOKENS, service.max_model_len)
    _check_number_of_tokens(service, service.tokenizer.tokens_beyond(text, most), "prompt")
    return service.encoder.encode_prompt(text, add_special_tokens)


def _check_number_of_tokens(service: Service, count: int, field: str) -> None:
    most = max(MAX_LISTED_TOKENS, service.max_model_len)
    if count > most:
        raise InvalidRequest(f"{field} has {count} tokens or more; at most {most} are accepted here", field)


async def tokenizer_info(service: Service, exchange: Exchange) -> None:
    """The configuration of the tokenizer, from the model's files, and the chat templates in use."""
    template = None if service.template is None else dict(service.template.templates.sources)
    path = Path(service.config.model.tokenizer or service.config.model.model) / "tokenizer_config.json"
    declared = await service.off_loop(LONG, read_json, path)
    info = {name: value for name, value in declared.items() if not name.endswith(("_file", "_or_path"))}  # paths
    shown = template["default"] if template is not None and [*template] == ["default"] else template
    answer = {"tokenizer_class": "PreTrainedTokenizerFast", **info, "chat_template": shown}
    await exchange.send_json(answer)

"""Every route in one table: what it takes, what it answers, and the function that does it."""

import msgspec

from paged_serve import __version__
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.config import ServerConfig

from ...admission import check_token_ids
from ...conversation.strict_json import decode_body
from ...conversation.unknown_fields import check_number_of_nodes
from ...text.off_loop import LONG
from ..anthropic.answers import MessageAnswer, TokenCount
from ..anthropic.errors import ANTHROPIC, MessagesErrorAnswer
from ..anthropic.schemas import CountTokensRequest, MessagesRequest
from ..exchange.exchange import Exchange
from ..openai import answers
from ..openai.request import schemas
from ..openai.request.prompts import chat_tokens
from ..page.page_files import send_page_file
from ..responses.answers import Response
from ..responses.schemas import ResponsesRequest
from ..service import Service
from .admin import METRICS
from .generate import create_chat_completion, create_completion, create_message, create_response
from .idempotent import delete_stream, get_stream, head_stream
from .messages import count_tokens, model_info, model_page
from .openapi import document
from .route_spec import RouteSpec

MAX_LISTED_TOKENS = 1 << 18  # or as many as the model takes


async def list_models(service: Service, exchange: Exchange) -> None:
    if exchange.wire_format is ANTHROPIC:
        await exchange.send_json(model_page(service))
    else:
        models = [_model(service, name) for name in service.model_names]
        await exchange.send_json(answers.ModelList(object="list", data=models))


async def get_model(service: Service, exchange: Exchange) -> None:
    name = service.model_name(exchange.scope["path_params"]["model"])
    model = model_info if exchange.wire_format is ANTHROPIC else _model
    await exchange.send_json(model(service, name))


async def tokenize(service: Service, exchange: Exchange) -> None:
    """A text, or a conversation as the model would see it, to token ids."""
    raw, lenient = await exchange.body(), service.config.server.lenient
    if await service.off_loop(len(raw), _has_messages, raw):
        chat, _ = await service.off_loop(len(raw), decode_body, schemas.TokenizeChatRequest, raw, lenient)
        service.model_name(chat.model)
        ids, _ = await chat_tokens(service, chat, raw, add_special_tokens=bool(chat.add_special_tokens))
        names = chat.return_token_strs
    else:
        text, _ = await service.off_loop(len(raw), decode_body, schemas.TokenizeTextRequest, raw, lenient)
        service.model_name(text.model)
        special = True if text.add_special_tokens is None else text.add_special_tokens
        long = service.encoder.may_take_long([text.prompt])
        ids = await service.off_loop(LONG if long else len(text.prompt), _tokens, service, text.prompt, special)
        names = text.return_token_strs
    answer = answers.Tokens(count=len(ids), max_model_len=service.max_model_len, tokens=ids)
    if names:
        answer.token_strs = await service.off_loop(len(ids), lambda: [*map(service.tokenizer.token_text, ids)])
    await exchange.send_json(answer)


async def detokenize(service: Service, exchange: Exchange) -> None:
    raw, lenient = await exchange.body(), service.config.server.lenient
    body, _ = await service.off_loop(len(raw), decode_body, schemas.DetokenizeRequest, raw, lenient)
    service.model_name(body.model)

    def decode() -> str:
        _check_number_of_tokens(service, len(body.tokens), "tokens")
        check_token_ids(body.tokens, service.engine.limits.vocab_size, "tokens")
        return service.tokenizer.decode(body.tokens, skip_special_tokens=False)

    await exchange.send_json(answers.Text(prompt=await service.off_loop(len(body.tokens), decode)))


async def version(service: Service, exchange: Exchange) -> None:
    await exchange.send_json(answers.Version(version=__version__))


async def openapi(service: Service, exchange: Exchange) -> None:
    limits = service.engine.limits
    text = document(
        public_routes(service.config.server),
        service.config.server.max_logprobs,
        limits.vocab_size,
        limits.max_model_len,
        service.config.server.root_path,
    )
    await exchange.send(200, text, [(b"content-type", b"application/json")])


ROUTES = (
    RouteSpec(
        "POST",
        "/v1/completions",
        create_completion,
        "Continue a prompt",
        (schemas.CompletionRequest,),
        answers.Completion,
        streams=True,
        headers=("Idempotency-Key", "Last-Event-ID"),
        statuses=(204, 409, 410, 422),
    ),
    RouteSpec(
        "POST",
        "/v1/chat/completions",
        create_chat_completion,
        "Answer a conversation",
        (schemas.ChatCompletionRequest,),
        answers.ChatCompletion,
        streams=True,
        headers=("Idempotency-Key", "Last-Event-ID"),
        statuses=(204, 409, 410, 422),
    ),
    RouteSpec(
        "POST",
        "/v1/responses",
        create_response,
        "Answer a conversation, in items",
        (ResponsesRequest,),
        Response,
        streams=True,
        headers=("Idempotency-Key", "Last-Event-ID"),
        statuses=(204, 409, 410, 422),
    ),
    RouteSpec(
        "POST",
        "/v1/messages",
        create_message,
        "Answer a conversation, for Anthropic's clients",
        (MessagesRequest,),
        MessageAnswer,
        streams=True,
        headers=("Idempotency-Key", "Last-Event-ID"),
        statuses=(204, 409, 410, 422),
        error=MessagesErrorAnswer,
    ),
    RouteSpec(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "How many tokens a prompt has",
        (CountTokensRequest,),
        TokenCount,
        error=MessagesErrorAnswer,
    ),
    RouteSpec(
        "GET",
        "/v1/streams/{id}",
        get_stream,
        "Go on with a stream whose connection broke",
        streams=True,
        headers=("Last-Event-ID",),
        statuses=(204, 409, 410),
    ),
    RouteSpec(
        "HEAD",
        "/v1/streams/{id}",
        head_stream,
        "Whether a stream is kept",
        headers=("Last-Event-ID",),
        statuses=(410,),
    ),
    RouteSpec("DELETE", "/v1/streams/{id}", delete_stream, "End a stream", statuses=(204, 410)),
    RouteSpec("GET", "/v1/models", list_models, "Names to put into `model`", answer=answers.ModelList),
    RouteSpec("GET", "/v1/models/{model}", get_model, "One model", answer=answers.Model),
    RouteSpec(
        "POST",
        "/tokenize",
        tokenize,
        "Text or conversation to tokens",
        (schemas.TokenizeTextRequest, schemas.TokenizeChatRequest),
        answers.Tokens,
    ),
    RouteSpec("POST", "/detokenize", detokenize, "Tokens to text", (schemas.DetokenizeRequest,), answers.Text),
    RouteSpec("GET", "/version", version, "Version of the server", answer=answers.Version),
    RouteSpec("GET", "/openapi.json", openapi, "This document"),
    RouteSpec("GET", "/", send_page_file, "A chat page"),
    RouteSpec("GET", "/page/{file}", send_page_file, "The chat page's scripts and styles"),
)


def public_routes(server: ServerConfig) -> tuple[RouteSpec, ...]:
    """What is served on the public port."""
    return (*ROUTES, METRICS) if server.public_metrics else ROUTES


def _model(service: Service, name: str) -> answers.Model:
    return answers.Model(
        id=name,
        object="model",
        created=service.started_at,
        owned_by="paged-serve",
        root=service.model_names[0],
        max_model_len=service.max_model_len,
    )


def _tokens(service: Service, text: str, add_special_tokens: bool) -> list[int]:
    most = max(MAX_LISTED_TOKENS, service.max_model_len)
    _check_number_of_tokens(service, service.tokenizer.tokens_beyond(text, most), "prompt")
    return service.encoder.encode_prompt(text, add_special_tokens)


def _check_number_of_tokens(service: Service, count: int, field: str) -> None:
    most = max(MAX_LISTED_TOKENS, service.max_model_len)
    if count > most:
        raise InvalidRequest(f"{field} has {count} tokens or more; at most {most} are accepted here", field)


def _has_messages(body: bytes) -> bool:
    check_number_of_nodes(body)
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False  # the decoder of texts reports what is wrong
    return "messages" in fields

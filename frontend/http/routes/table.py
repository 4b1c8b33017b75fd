"""Every route in one table: its body, its answer, and its handler."""

from functools import partial
from typing import Literal

from paged_serve import __version__
from paged_serve.protocol.messages.config import ServerConfig

from ..anthropic.answers import MessageAnswer, TokenCount
from ..anthropic.errors import ANTHROPIC, MessagesErrorAnswer
from ..anthropic.schemas import CountTokensRequest, MessagesRequest
from ..exchange.errors import ErrorAnswer
from ..exchange.exchange import JSON, Exchange
from ..openai import answers
from ..openai.endpoints import CHAT_COMPLETION, COMPLETION
from ..openai.request import schemas
from ..openai.token_generation.endpoint import TOKENS
from ..openai.token_generation.request import TokensRequest
from ..openai.token_generation.writer import TokensAnswer
from ..page.page_files import send_page_file
from ..responses.answers import DeletedResponse, InputItemList, InputTokens, Response
from ..responses.schemas import ResponsesRequest
from ..service import Service
from .adapters.routes import ADAPTER_ROUTES
from .chat_batch import CHAT_BATCH
from .generate import create_answer
from .idempotent import delete_stream, get_stream, head_stream
from .invocations import invoke
from .messages import MESSAGES, count_tokens, model_info, model_page
from .openapi import document
from .operator.routes import METRICS
from .pooling.routes import POOLING_ROUTES
from .route_spec import Handler, Kinds, RouteSpec, Tasks
from .stored.create import create_response
from .stored.input_tokens import count_input_tokens
from .stored.retrieve import cancel_response, delete_response, get_response, list_input_items
from .tokens import apply_template, detokenize, tokenize, tokenizer_info


async def list_models(service: Service, exchange: Exchange) -> None:
    if exchange.wire_format is ANTHROPIC:
        await exchange.send_json(model_page(service))
    else:
        models = [_model(service, name) for name in (*service.model_names, *service.adapters.all())]
        await exchange.send_json(answers.ModelList(object="list", data=models))


async def get_model(service: Service, exchange: Exchange) -> None:
    name = await service.model_name(exchange.scope["path_params"]["model"])
    model = model_info if exchange.wire_format is ANTHROPIC else _model
    await exchange.send_json(model(service, name))


async def version(service: Service, exchange: Exchange) -> None:
    await exchange.send_json(answers.Version(version=__version__))


async def load(service: Service, exchange: Exchange) -> None:
    """The number of requests in progress in this frontend."""
    await exchange.send_json(answers.Load(server_load=service.admission.num_active))


async def openapi(service: Service, exchange: Exchange) -> None:
    limits = service.engine.limits
    text = document(
        public_routes(service.config.server),
        service.config.server.max_logprobs,
        limits.vocab_size,
        limits.max_model_len,
        service.config.server.root_path,
    )
    await exchange.send(200, text, JSON)


def _of_pooling(name: Literal["bodies", "answers"]) -> Kinds:
    """Those of all pooling routes, each once."""
    return tuple(dict.fromkeys(kind for spec in POOLING_ROUTES for kind in getattr(spec, name)))


def _generating(
    path: str,
    handler: Handler,
    summary: str,
    bodies: Kinds,
    answers: Kinds,
    errors: Kinds = (ErrorAnswer,),
    operation: str = "",
    tasks: Tasks = ("generate",),
) -> RouteSpec:
    """A route whose answer may be streamed, and is computed once if the request has an idempotency key."""
    headers, statuses = ("Idempotency-Key", "Last-Event-ID"), (204, 409, 410, 422)
    return RouteSpec("POST", path, handler, summary, bodies, answers, True, headers, statuses, errors, tasks, operation)


_OF_ANY_STREAM = (ErrorAnswer, MessagesErrorAnswer)  # which of them depends on the stream's id

ROUTES = (
    _generating(
        "/v1/completions",
        partial(create_answer, endpoint=COMPLETION),
        "Continue a prompt",
        (schemas.CompletionRequest,),
        (answers.Completion,),
        operation="create_completion",
    ),
    _generating(
        "/v1/chat/completions",
        partial(create_answer, endpoint=CHAT_COMPLETION),
        "Answer a conversation",
        (schemas.ChatCompletionRequest,),
        (answers.ChatCompletion,),
        operation="create_chat_completion",
    ),
    RouteSpec(
        "POST",
        "/v1/chat/completions/batch",
        partial(create_answer, endpoint=CHAT_BATCH),
        "Answer several conversations, one choice each",
        (schemas.ChatBatchRequest,),
        (answers.ChatCompletion,),
        headers=("Idempotency-Key",),
        statuses=(409, 410, 422),
        tasks=("generate",),
        operation="create_chat_batch",
    ),
    _generating(
        "/v1/responses",
        create_response,
        "Answer a conversation, with OpenAI's Responses API",
        (ResponsesRequest,),
        (Response,),
    ),
    RouteSpec(
        "POST",
        "/v1/responses/input_tokens",
        count_input_tokens,
        "Count the tokens of a response's prompt",
        (ResponsesRequest,),
        (InputTokens,),
    ),
    RouteSpec("POST", "/v1/responses/{id}/cancel", cancel_response, "End a background response", answers=(Response,)),
    RouteSpec(
        "GET",
        "/v1/responses/{id}/input_items",
        list_input_items,
        "The input items of a stored response",
        answers=(InputItemList,),
    ),
    RouteSpec("GET", "/v1/responses/{id}", get_response, "A stored response", answers=(Response,), streams=True),
    RouteSpec("DELETE", "/v1/responses/{id}", delete_response, "Delete a stored response", answers=(DeletedResponse,)),
    _generating(
        "/v1/messages",
        partial(create_answer, endpoint=MESSAGES),
        "Answer a conversation, with Anthropic's API",
        (MessagesRequest,),
        (MessageAnswer,),
        errors=(MessagesErrorAnswer,),
        operation="create_message",
    ),
    RouteSpec(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "Count the tokens of a prompt",
        (CountTokensRequest,),
        (TokenCount,),
        errors=(MessagesErrorAnswer,),
    ),
    _generating(
        "/inference/v1/generate",
        partial(create_answer, endpoint=TOKENS),
        "Continue a prompt, tokens in and tokens out",
        (TokensRequest,),
        (TokensAnswer,),
        operation="generate_tokens",
    ),
    *POOLING_ROUTES,
    RouteSpec(
        "GET",
        "/v1/streams/{id}",
        get_stream,
        "Resume a stream whose connection broke",
        streams=True,
        headers=("Last-Event-ID",),
        statuses=(204, 409, 410),
        errors=_OF_ANY_STREAM,
    ),
    RouteSpec(
        "HEAD",
        "/v1/streams/{id}",
        head_stream,
        "Whether a stream is stored",
        headers=("Last-Event-ID",),
        statuses=(410,),
    ),
    RouteSpec("DELETE", "/v1/streams/{id}", delete_stream, "End a stream", statuses=(204, 410), errors=_OF_ANY_STREAM),
    *ADAPTER_ROUTES,
    RouteSpec("GET", "/v1/models", list_models, "List the model names", answers=(answers.ModelList,)),
    RouteSpec("GET", "/v1/models/{model}", get_model, "One model", answers=(answers.Model,)),
    RouteSpec(
        "POST",
        "/tokenize",
        tokenize,
        "Turn a text or a conversation into tokens",
        (schemas.TokenizeTextRequest, schemas.TokenizeChatRequest),
        (answers.Tokens,),
    ),
    RouteSpec(
        "POST", "/detokenize", detokenize, "Turn tokens into text", (schemas.DetokenizeRequest,), (answers.Text,)
    ),
    RouteSpec(
        "POST",
        "/apply-template",
        apply_template,
        "Turn a conversation into the text of its prompt",
        (schemas.ApplyTemplateRequest,),
        (answers.Text,),
    ),
    RouteSpec("GET", "/tokenizer_info", tokenizer_info, "The tokenizer's configuration"),
    _generating(
        "/invocations",
        invoke,
        "The answer of the route that the body is written for, for SageMaker",
        (schemas.ChatCompletionRequest, schemas.CompletionRequest, *_of_pooling("bodies")),
        (answers.ChatCompletion, answers.Completion, *_of_pooling("answers")),
        tasks=(),
    ),
    RouteSpec("GET", "/load", load, "Requests in progress", answers=(answers.Load,)),
    RouteSpec("GET", "/version", version, "Version of the server", answers=(answers.Version,)),
    RouteSpec("GET", "/openapi.json", openapi, "This document"),
    RouteSpec("GET", "/", send_page_file, "The chat page"),
    RouteSpec("GET", "/docs", send_page_file, "The routes and their fields, as a page", operation="docs"),
    RouteSpec("GET", "/page/{file}", send_page_file, "Scripts and styles of both pages", operation="page_file"),
)


def public_routes(server: ServerConfig) -> tuple[RouteSpec, ...]:
    """The routes of the public port."""
    return (*ROUTES, METRICS) if server.public_metrics else ROUTES


def _model(service: Service, name: str) -> answers.Model:
    adapter = service.adapter_of(name)
    return answers.Model(
        id=name,
        object="model",
        created=service.started_at,
        owned_by="paged-serve",
        root=service.model_names[0] if adapter is None else adapter.path,
        parent=None if adapter is None else service.model_names[0],
        max_model_len=service.max_model_len,
    )

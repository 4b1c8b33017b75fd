"""Builds the OpenAPI document from the route table and the Structs of bodies and answers."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from paged_serve import __version__

from ...conversation.conversation import RESERVED_KWARGS
from ..exchange.errors import ErrorAnswer
from ..idempotency.keys import EVENT_ID_PATTERN, KEY_PATTERN
from ..openai import answers
from ..openai.request import fields
from .route_spec import Kinds, RouteSpec

_NULL = {"type": "null"}
_PROBES = {
    "/live": "The process is running",
    "/health": "The engine is running",
    "/ping": "The same, for SageMaker",
    "/ready": "Send requests",
}
_REF = "#/components/schemas/{name}"
_STREAMED = (answers.ChatChunkChoice,)
_PLAIN = {"/metrics": "text/plain", "/openapi.json": "application/json", "/": "text/html", "/docs": "text/html"}
_OPEN = {"/live", "/health", "/", "/docs", "/page/{file}"}
_HEADERS = {
    "Idempotency-Key": (KEY_PATTERN, "A request repeated with its key gets the same answer, byte for byte"),
    "Last-Event-ID": (EVENT_ID_PATTERN, "The stream resumes after this event"),
}
_OTHERS = {
    "204": "There are no events after that",
    "409": "Another connection has taken over the answer",
    "410": "The stream, or a part of it, is no longer stored",
    "422": "The Idempotency-Key or Last-Event-ID belongs to another request",
}
_ERRORS = {
    "400": "The request is invalid; the message names the field, its value and the limit",
    "401": "A valid API key is missing",
    "403": "The host or the page's origin is not allowed",
    "404": "No such path, model or stream",
    "413": "The body is too long",
    "415": "The body is compressed",
    "429": "Too many requests are waiting; see Retry-After",
    "500": "The server or the engine failed on this request",
    "503": "The server is starting or shutting down, or the engine is being replaced",
    "504": "No token within the request's timeout",
}


def document(
    routes: Sequence[RouteSpec], max_logprobs: int, vocab_size: int, max_model_len: int, root_path: str = ""
) -> bytes:
    """OpenAPI 3.1 as JSON, with the limits of this server."""
    named = {kind for spec in routes for kind in (*spec.bodies, *spec.answers, *spec.errors)}
    kinds: list[type[msgspec.Struct]] = sorted({*named, ErrorAnswer, *_STREAMED}, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    _tighten(components, max_logprobs, vocab_size, max_model_len)
    paths: dict[str, dict[str, Any]] = {}
    for spec in routes:
        paths.setdefault(spec.path, {})[spec.method.lower()] = _operation(spec)
    for path, text in _PROBES.items():
        paths[path] = {"get": {"summary": text, "responses": {"200": {"description": "Yes"}, "503": _error("503")}}}
    for path in ("/live", "/health", "/ping"):
        paths[path]["get"]["responses"]["503"] = {"description": "No"}
    for path in paths.keys() & _OPEN:
        paths[path]["get"]["security"] = []
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "paged-serve", "version": __version__},
            **({"servers": [{"url": root_path}]} if root_path else {}),
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "key": {"type": "http", "scheme": "bearer"},
                    "x_api_key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                },
            },
            "security": [{}, {"key": []}, {"x_api_key": []}],
        }
    )


def _tighten(components: dict[str, Any], max_logprobs: int, vocab_size: int, max_model_len: int) -> None:
    """Add constraints that the types cannot express."""
    token = {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}
    tokens = {"type": "array", "items": token, "minItems": 1}
    text = {"type": "string", "minLength": 1}
    many = {"type": "array", "minItems": 1, "maxItems": fields.MAX_PROMPTS}
    forms = [text, tokens, {**many, "items": text}, {**many, "items": tokens}]  # texts and tokens cannot be mixed
    completion = components["CompletionRequest"]["properties"]
    chat = components["ChatCompletionRequest"]["properties"]
    completion["prompt"] = {"anyOf": forms}
    chat["response_format"] = {
        "anyOf": [{"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]}, _NULL]
    }
    chat["tool_choice"] = {"anyOf": [{"type": "string", "enum": ["none", "auto"]}, _NULL]}
    top = {
        "anyOf": [
            {"type": "integer", "minimum": 0 if vocab_size > max_logprobs else -1, "maximum": max_logprobs},
            _NULL,
        ],
        "default": None,
    }
    completion["logprobs"] = completion["prompt_logprobs"] = chat["top_logprobs"] = chat["prompt_logprobs"] = top
    for properties in (completion, chat):
        properties["allowed_token_ids"] = {"anyOf": [tokens, _NULL], "default": None}
        properties["stop_token_ids"] = {"anyOf": [{"type": "array", "items": token}, _NULL], "default": None}
        for name in ("max_tokens", "max_completion_tokens"):
            if name in properties:
                properties[name]["anyOf"][0]["maximum"] = max_model_len - 1
        properties["logit_bias"]["anyOf"][0]["propertyNames"] = {"pattern": "^(0|[1-9][0-9]{0,8})$"}
    components["ToolUseContent"]["properties"]["input"] = {"type": "object"}
    components["DetokenizeRequest"]["properties"]["tokens"]["items"] = token
    _tighten_messages(components["ChatMessage"])
    for component in components.values():
        if component.get("additionalProperties") is False:
            component["additionalProperties"] = _NULL  # null means an absent field
    for name in ("ChatCompletionRequest", "TokenizeChatRequest", "ApplyTemplateRequest"):
        kwargs = components[name]["properties"]["chat_template_kwargs"]["anyOf"][0]
        kwargs["propertyNames"] = {
            "pattern": f"^(?!({'|'.join(sorted(RESERVED_KWARGS))})$)[A-Za-z_][A-Za-z0-9_]{{0,63}}$"
        }


def _tighten_messages(message: dict[str, Any]) -> None:
    message["anyOf"] = [  # only an assistant message may have no content: it may have tool calls instead
        {"properties": {"role": {"const": "assistant"}}},
        {"properties": {"role": {"const": "function"}, "name": {"type": "string"}}, "required": ["name"]},
        {
            "properties": {"role": {"not": {"const": "function"}}, "content": {"not": {"type": "null"}}},
            "required": ["content"],
        },
    ]
    both = {"function_call": {"type": "object"}, "tool_calls": {"type": "array", "minItems": 1}}
    message["not"] = {"properties": both, "required": [*both]}


def _operation(spec: RouteSpec) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if spec.answers:
        content["application/json"] = {"schema": _schema(spec.answers)}
    if spec.streams:
        content["text/event-stream"] = {"schema": {"description": "Server-sent events"}}
    if spec.streams and not spec.answers:
        content["application/json"] = {"schema": {"type": "object", "description": "An answer that is not streamed"}}
    if not spec.answers and spec.path in _PLAIN:
        content[_PLAIN[spec.path]] = {"schema": {"type": "object" if "json" in _PLAIN[spec.path] else "string"}}
    operation: dict[str, Any] = {
        "summary": spec.summary,
        "operationId": spec.operation or spec.handler.__name__,
        "responses": {"200": {"description": "Done", "content": content}}
        | {code: _error(code, spec.errors) for code in _ERRORS},
    }
    if spec.bodies:
        body = {"application/json": {"schema": _schema(spec.bodies)}}
        operation["requestBody"] = {"required": True, "content": body}
    for status in map(str, spec.statuses):
        operation["responses"][status] = (
            {"description": _OTHERS[status]} if status == "204" else _error(status, spec.errors)
        )
    if parameters := [*_path_parameters(spec.path), *map(_header, spec.headers)]:
        operation["parameters"] = parameters
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _header(name: str) -> dict[str, Any]:
    pattern, text = _HEADERS[name]
    return {"name": name, "in": "header", "description": text, "schema": {"type": "string", "pattern": pattern}}


def _schema(kinds: Kinds) -> dict[str, Any]:
    references = [{"$ref": _REF.format(name=kind.__name__)} for kind in kinds]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _error(code: str, kinds: Kinds = (ErrorAnswer,)) -> dict[str, Any]:
    return {
        "description": (_ERRORS | _OTHERS)[code],
        "content": {"application/json": {"schema": _schema(kinds)}},
    }

"""Errors in Anthropic's form: {"type": "error", "error": {"type", "message"}, "request_id"}."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..exchange.errors import HttpError
from ..exchange.wire_format import OLLAMA, OPENAI, WireFormat

PATHS = ("/v1/messages", "/v1/streams/msg_")  # and all below them
OLLAMAS_PATH = "/api/"  # nothing is served below it
SHARED_PATH = "/v1/models"  # a header tells which API the client uses
VERSION_HEADER = "anthropic-version"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}  # by status; all others are invalid requests


THREAD = "thread"  # the field


class UnsupportedThread(msgspec.Struct, frozen=True):
    """After this refusal of a thread, Anthropic's clients send the whole conversation instead."""

    error_code: Literal["thread_unsupported_request"] = "thread_unsupported_request"


class MessagesErrorDetail(msgspec.Struct, frozen=True):
    type: str
    message: str
    details: UnsupportedThread | UnsetType = UNSET


class MessagesErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["error"] = "error"
    error: MessagesErrorDetail
    request_id: str | UnsetType = UNSET


def error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error")


def error_body(error: HttpError, request_id: str) -> bytes:
    details = UnsupportedThread() if error.param == THREAD else UNSET
    detail = MessagesErrorDetail(error_type(error.status), error.message, details)
    return msgspec.json.encode(MessagesErrorAnswer(error=detail, request_id=request_id or UNSET))


ANTHROPIC = WireFormat(
    error_body,
    error_head=b"event: error\ndata: ",
    stream_end=b"",
    ping=b'event: ping\ndata: {"type":"ping"}\n\n',
    request_id_headers=(b"x-request-id", b"request-id"),
)


def wire_format(path: str, headers: Mapping[str, str]) -> WireFormat:
    """The API of the client that requests this path."""
    if path.startswith(OLLAMAS_PATH):
        return OLLAMA
    is_shared = path.startswith(SHARED_PATH) and VERSION_HEADER in headers
    return ANTHROPIC if is_shared or path.startswith(PATHS) else OPENAI

"""All errors in OpenAI's form, {"error": {"message", "type", "param", "code"}}, and the status for each exception."""

import math

import msgspec

from paged_serve.protocol.errors import (
    SHOWN_FAILURES,
    EngineDead,
    InvalidRequest,
    Overloaded,
    RequestAborted,
    RequestExpired,
    RequestFailed,
)

from ...admission import ContextExceeded

Headers = list[tuple[bytes, bytes]]

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    410: "GoneError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    431: "HeadersTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}


CONTEXT_EXCEEDED = "context_length_exceeded"  # OpenAI's code, at which agents shorten their conversation
NO_STORE = (b"cache-control", b"no-store")  # a cache in a proxy may ignore X-Api-Key, and serve an old /health
DO_NOT_RETRY = [(b"x-should-retry", b"false")]  # OpenAI's clients retry after any 5xx; this time limit is over


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: int | str  # the status, or a word that clients look for


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorDetail


class HttpError(Exception):
    """Ends a request with this status; the message is for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Headers | None = None,
        code: str | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.code = code or status
        self.message = message
        self.param = param
        self.headers = headers or []


def http_error(error: Exception, request_id: str) -> HttpError:
    """The error to send. The texts of unexpected errors stay in the log, as they may name files or addresses."""
    match error:
        case HttpError():
            return error
        case ContextExceeded(message=message, param=param):
            return HttpError(400, message, param, code=CONTEXT_EXCEEDED)
        case InvalidRequest(message=message, param=param):
            return HttpError(400, message, param)
        case Overloaded(message=message, retry_after_s=seconds, draining=draining):
            return HttpError(503 if draining else 429, message, headers=retry_after(seconds))
        case RequestExpired(message=message, param=param):
            return HttpError(504, message, param, headers=DO_NOT_RETRY)
        case RequestAborted():
            return HttpError(410, "The server's operator has ended this request.")
        case RequestFailed(param=param) if param:
            return HttpError(400, str(error), param)
        case RequestFailed():
            why = f": {error}" if str(error) in SHOWN_FAILURES else ""  # other reasons may name files
            message = f"The server cannot compute request {request_id}{why}; sending it again will not help."
            return HttpError(500, message, headers=DO_NOT_RETRY)
        case EngineDead():
            return HttpError(500, f"The engine failed on request {request_id}; sending it again may help.")
        case RecursionError():  # parsing deeper in the program has less stack left than the first one
            return HttpError(400, "The body is nested too deeply; use fewer levels of lists and objects.")
        case _:
            return HttpError(500, f"The server failed on request {request_id}; its log says why.")


def retry_after(seconds: float) -> Headers:
    """Headers with the time to wait: seconds, rounded up, and milliseconds for clients that read them."""
    milliseconds = math.ceil(1000 * seconds)
    return [
        (b"retry-after", str(max(1, math.ceil(milliseconds / 1000))).encode()),
        (b"retry-after-ms", str(milliseconds).encode()),  # OpenAI's clients look here first
    ]


def error_body(error: HttpError) -> bytes:
    detail = ErrorDetail(error.message, _TYPES.get(error.status, "Error"), error.param, error.code)
    return msgspec.json.encode(ErrorAnswer(detail))

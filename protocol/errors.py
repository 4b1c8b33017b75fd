"""One exception class per reaction: what the user or the catching code does next."""

# Why a request failed, in words that a client without access to the log may read, too.
NO_TOKEN = "the model's output was not finite, so no token could be chosen"
NO_VECTOR = "the model's output was not finite, so there is no vector"
TOKENIZER_FAILS = "processes of the server failed whenever they tokenized its text"
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 5.0  # not a busy loop; and room may come earlier than predicted
SHOWN_FAILURES = frozenset((NO_TOKEN, NO_VECTOR, TOKENIZER_FAILS))


class PagedServeError(Exception):
    """Base of every error that paged-serve raises on purpose."""


class ConfigError(PagedServeError, ValueError):
    """The start is refused: an option, a model folder or the machine does not fit. Exit code 2; fix and start again."""


class MemoryShortage(ConfigError):
    """Memory does not suffice. A first start is refused; a later one is tried again, because a shortage may pass."""


class InvalidRequest(PagedServeError, ValueError):
    """The request is refused (HTTP 400); sending it again unchanged fails again."""

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param  # the field at fault, in the caller's spelling


class Overloaded(PagedServeError):
    """The queue is full or the server is draining (HTTP 429 or 503); the same request may succeed later."""

    def __init__(self, message: str, retry_after_s: float = 1.0, draining: bool = False):
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.draining = draining

    @property
    def pause_s(self) -> float:
        """How long a caller of the client library waits before it sends the request again."""
        return min(max(self.retry_after_s, MIN_PAUSE_S), MAX_PAUSE_S)


class RequestExpired(PagedServeError, TimeoutError):
    """The request's own time limit ended before its first token (HTTP 504); nothing was computed."""

    def __init__(self, message: str, param: str | None = "timeout"):
        super().__init__(message)
        self.message = message
        self.param = param


class EngineDead(PagedServeError):
    """The engine is gone or failed this request (HTTP 500 or 503)."""


class RequestFailed(PagedServeError):
    """The engine ended this request: no token can be sampled, or it crashes workers. A retry fails too.

    HTTP 400 if a parameter of the request is the cause, 500 otherwise.
    """

    def __init__(self, message: str, param: str = ""):
        super().__init__(message)
        self.param = param  # "": no parameter is the cause


class RequestAborted(PagedServeError):
    """The server's operator ended this request (HTTP 410); under the same Idempotency-Key it stays ended."""


class ProtocolError(PagedServeError):
    """A peer has another protocol version, or violates the protocol; the link is closed."""

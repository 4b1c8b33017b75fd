"""OpenAI's batch files: one request per line in, one answer per line out, matched by custom_id."""

import codecs
import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

import msgspec

from paged_serve.protocol.errors import ConfigError

POOLING_URLS = (
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", *POOLING_URLS)
MAX_LINE_BYTES = 8 << 20  # twice the limit of a server
ID_PREFIX = "batch_req_"
_LINE_PREFIX = b'{"id":"' + ID_PREFIX.encode()  # of every result


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the input."""

    custom_id: str
    method: str = "POST"
    url: str
    body: dict[str, Any]

    def problem(self) -> str:
        """Why the request is refused; "" when it is sent."""
        if self.method != "POST":
            return f"method is {self.method!r:.40}; it must be 'POST'"
        if self.url not in URLS:
            return f"url is {self.url!r:.80}; it must be one of {', '.join(URLS)}"
        if self.body.get("stream"):
            return "stream is true; a batch has no streams, leave it out"
        if self.body.get("background"):
            return "background is true; a batch waits for every answer, leave it out"
        return ""


class BatchResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct, frozen=True):
    code: str
    message: str


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the output: a response, or the error in its place."""

    id: str
    custom_id: str | None
    response: BatchResponse | None = None
    error: BatchError | None = None

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response.status_code == 200


class _Done(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(pattern=f"^{ID_PREFIX}")]  # requests have none
    custom_id: str | None = None
    error: BatchError | None = None


class _Named(msgspec.Struct):
    custom_id: str | None = None


_decode_named = msgspec.json.Decoder(_Named).decode
_decode_request = msgspec.json.Decoder(BatchRequest).decode
_decode_done = msgspec.json.Decoder(_Done).decode
_encode = msgspec.json.Encoder().encode


def read_requests(file: BinaryIO) -> Iterator[BatchRequest | BatchResult]:
    """The request of each line, or the refusal of an invalid line; empty lines are skipped."""
    number, seen = 0, set[str]()
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) > MAX_LINE_BYTES:
            _skip_rest(line, file)
            yield refusal(number, None, f"line {number} has more than {MAX_LINE_BYTES} bytes")
            continue
        if not line.strip():
            continue
        entry = _request(line, number)
        name = entry.custom_id
        if name is not None and name in seen:  # the results would be indistinguishable
            entry = refusal(number, None, f"line {number}: custom_id is {name!r:.80}, as on an earlier line")
        elif name is not None:
            seen.add(name)
        yield entry


def _skip_rest(line: bytes, file: BinaryIO) -> None:
    """Read to the end of the line that begins with `line`, and keep none of it."""
    while line and not line.endswith(b"\n"):
        line = file.readline(MAX_LINE_BYTES)


def _request(line: bytes, number: int) -> BatchRequest | BatchResult:
    try:
        request = _decode_request(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return refusal(number, _custom_id(line), f"line {number} is not a request: {error}")
    problem = request.problem()
    return refusal(number, request.custom_id, f"line {number}: {problem}") if problem else request


def _custom_id(line: bytes) -> str | None:
    """The custom_id of a line that is not a request, if it has one."""
    try:
        return _decode_named(line).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def refusal(number: int, custom_id: str | None, message: str) -> BatchResult:
    return BatchResult(id=f"{ID_PREFIX}{number}", custom_id=custom_id, error=BatchError("invalid_request", message))


class ResultFile:
    """The output file, which a later run continues.

    An incomplete last line of a killed run is removed. Raises ConfigError for a file of another kind, and for one that
    another run is writing.
    """

    def __init__(self, path: str):
        if os.path.exists(path) and not os.path.isfile(path):
            raise ConfigError(f"{path} is not a regular file; give another -o")
        self._answered: set[str] = set()  # custom_ids
        self._refused: set[str] = set()  # errors of lines without one
        self._file = open(path, "a+b")  # noqa: SIM115
        self._lock(path)
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, 1):
            try:
                self._note(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._file.close()
                raise ConfigError(
                    f"line {number} of {path} is not a result of a batch: {error}; give another -o"
                ) from None
            whole += len(line) if line.endswith(b"\n") else 0
        self._file.truncate(whole)

    def _lock(self, path: str) -> None:
        """Keep other runs out until the file is closed: two would send every request twice, and cut off each other's
        last line."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(f"another run is writing {path}; wait for its end, or give another -o") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # this file system has no locks
                raise

    def _note(self, line: bytes) -> None:
        """Read a line of an earlier run. Raises DecodeError when it is neither a result nor the beginning of one."""
        is_begun = line.startswith(_LINE_PREFIX) or _LINE_PREFIX.startswith(line)
        if not line.endswith(b"\n") and is_begun:
            return
        done = _decode_done(line)
        if done.custom_id is not None:
            self._answered.add(done.custom_id)
        elif done.error is not None:
            self._refused.add(done.error.message)

    def has(self, entry: BatchRequest | BatchResult) -> bool:
        """Whether an earlier run has written the result of this line."""
        if entry.custom_id is not None:
            return entry.custom_id in self._answered
        return isinstance(entry, BatchResult) and entry.error is not None and entry.error.message in self._refused

    def add(self, result: BatchResult) -> None:
        """Write a line to the kernel at once, so that it survives a kill of this process."""
        self._file.write(_encode(result) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Sync the file to disk and close it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

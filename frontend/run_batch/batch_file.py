"""OpenAI's batch files: a request a line in, its answer a line out, found again by its custom_id."""

import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from paged_serve.protocol.errors import ConfigError

POOLING_URLS = (
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
URLS = ("/v1/chat/completions", "/v1/completions", *POOLING_URLS)
MAX_LINE_BYTES = 8 << 20  # twice what a server takes


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the input."""

    custom_id: str
    method: str = "POST"
    url: str
    body: dict[str, Any]

    def problem(self) -> str:
        """Why it is not sent; empty: it is."""
        if self.method != "POST":
            return f"method is {self.method!r:.40}; it can be 'POST'"
        if self.url not in URLS:
            return f"url is {self.url!r:.80}; it can be {', '.join(URLS)}"
        if self.body.get("stream"):
            return "stream is true; an answer in a file is whole, leave it out"
        return ""


class BatchResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct, frozen=True):
    code: str
    message: str


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the output: a response, or the reason that there is none."""

    id: str
    custom_id: str | None
    response: BatchResponse | None = None
    error: BatchError | None = None

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response.status_code == 200


class _Done(msgspec.Struct):
    custom_id: str | None = None


_decode_request = msgspec.json.Decoder(BatchRequest).decode
_decode_done = msgspec.json.Decoder(_Done).decode
_encode = msgspec.json.Encoder().encode


def read_requests(file: BinaryIO) -> Iterator[BatchRequest | BatchResult]:
    """Each line's request, or the refusal of a line that is none; empty lines are passed over."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise ConfigError(f"line {number} of {file.name} has more than {MAX_LINE_BYTES} bytes")
        if line.strip():
            yield _request(line, number)


def _request(line: bytes, number: int) -> BatchRequest | BatchResult:
    try:
        request = _decode_request(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return refusal(number, None, f"line {number} is no request: {error}")
    problem = request.problem()
    return refusal(number, request.custom_id, f"line {number}: {problem}") if problem else request


def refusal(number: int, custom_id: str | None, message: str) -> BatchResult:
    return BatchResult(id=f"batch_req_{number}", custom_id=custom_id, error=BatchError("invalid_request", message))


class ResultFile:
    """The output, which a later run continues: `done` are the custom_ids that it has.

    A line that a killed run has left torn is taken away. Raises ConfigError for a file of another kind.
    """

    def __init__(self, path: str):
        self.done: set[str] = set()
        self._file = open(path, "a+b")  # noqa: SIM115
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                custom_id = _decode_done(line).custom_id
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._file.close()
                raise ConfigError(
                    f"line {number} of {path} is no result of a batch: {error}; give another -o"
                ) from None
            if custom_id is not None:
                self.done.add(custom_id)
            whole += len(line)
        self._file.truncate(whole)

    def add(self, result: BatchResult) -> None:
        """Handed to the kernel at once: it stays when this process is killed."""
        self._file.write(_encode(result) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """On the disk from here on."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

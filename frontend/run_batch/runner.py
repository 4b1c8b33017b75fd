"""Sends the requests of a batch, a limited number at a time, and writes each answer as it arrives."""

import hashlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import BinaryIO

import click
import msgspec

from ..cli.http_client import HttpClient
from .batch_file import ID_PREFIX, BatchRequest, BatchResponse, BatchResult, ResultFile, read_requests

SHOWN_EVERY_S = 0.5


@dataclass(slots=True)
class Counts:
    """The number of input lines by outcome."""

    succeeded: int = 0
    failed: int = 0
    skipped: int = 0  # answered in the output already

    def __str__(self) -> str:
        return f"{self.succeeded} answered, {self.failed} failed, {self.skipped} skipped"


class Progress:
    """Shows the counts in one line of the terminal, twice a second."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._next_at = 0.0

    def show(self, counts: Counts) -> None:
        if self._shows and time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + SHOWN_EVERY_S
            click.echo(f"\r{counts} ", err=True, nl=False)

    def end(self, counts: Counts) -> None:
        click.echo(f"\r{counts}" if self._shows else str(counts), err=True)


class BatchRun:
    """One run over a batch file; `concurrency` is the number of requests in flight."""

    def __init__(self, client: HttpClient, results: ResultFile, concurrency: int):
        self._client = client
        self._results = results
        self._concurrency = concurrency
        self.counts = Counts()
        self._progress = Progress()

    def run(self, file: BinaryIO) -> Counts:
        """Answer every line that the output lacks, and close the client.

        Raises PagedServeError when the server is gone for good.
        """
        on_their_way: set[Future[BatchResult]] = set()
        threads = ThreadPoolExecutor(self._concurrency, "batch")
        try:
            for entry in read_requests(file):
                if self._results.has(entry):
                    self.counts.skipped += 1
                    continue
                if isinstance(entry, BatchResult):
                    self._add(entry)
                    continue
                on_their_way.add(threads.submit(_answer, self._client.post, entry))
                if len(on_their_way) == self._concurrency:
                    on_their_way = self._take(on_their_way)
            while on_their_way:
                on_their_way = self._take(on_their_way)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            self._client.close()  # the threads would delay the end of the process until their requests are answered
            self._progress.end(self.counts)
        return self.counts

    def _take(self, on_their_way: set[Future[BatchResult]]) -> set[Future[BatchResult]]:
        """Write the results that have arrived, at least one. Returns the requests still in flight."""
        done, rest = wait(on_their_way, return_when=FIRST_COMPLETED)
        failures = [error for future in done if (error := future.exception()) is not None]
        for future in done:
            if future.exception() is None:
                self._add(future.result())
        if failures:
            raise failures[0]
        return rest

    def _add(self, result: BatchResult) -> None:
        self._results.add(result)
        self.counts.succeeded += result.succeeded
        self.counts.failed += not result.succeeded
        self._progress.show(self.counts)


def _answer(post: Callable[[str, dict[str, object]], tuple[int, str, bytes]], request: BatchRequest) -> BatchResult:
    status, request_id, body = post(request.url, request.body)
    name = hashlib.sha256(request.custom_id.encode()).hexdigest()[:24]
    response = BatchResponse(status, request_id, _on_one_line(body))
    return BatchResult(id=f"{ID_PREFIX}{name}", custom_id=request.custom_id, response=response)


def _on_one_line(body: bytes) -> msgspec.Raw:
    """`body` as JSON without line breaks; a body that is not JSON, such as a proxy's page, as a string."""
    text = body.decode(errors="replace")
    try:
        return msgspec.Raw(msgspec.json.format(text, indent=-1).encode())
    except msgspec.DecodeError:
        return msgspec.Raw(msgspec.json.encode(text))

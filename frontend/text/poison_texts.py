"""Finds texts that end frontends while the tokenizer's library works on them: by a crash, or because it never returns.

A frontend notes the digest of a text during each call of the library, in a file that outlives it and that all frontends
share. When one has failed by itself, its successor counts the texts that are still noted. A counted text is worked on
alone, so that no other text is noted each time with it; after DEADLY_FAILURES it is refused. A call that returns
clears its text.

    notes of frontend 0 | of frontend 1 | … | counted texts: a digest and a count each
"""

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from paged_serve.protocol.errors import TOKENIZER_FAILS, Overloaded, PagedServeError, RequestFailed
from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS

from .off_loop import WORK_THREADS

log = logging.getLogger(__name__)

DEADLY_FAILURES = 1 + DEADLY_ISOLATIONS
RETURNS_WITHIN_BEATS = 240  # a minute; the longest text takes seconds, on a busy machine more
DIGEST_BYTES = 16
NUM_NOTES = 2 * WORK_THREADS  # more than the threads that call the library
NUM_COUNTED = 64
_NOTES_BYTES = NUM_NOTES * DIGEST_BYTES
_COUNTED_BYTES = DIGEST_BYTES + 1
_FREE = bytes(DIGEST_BYTES)


class _Call:
    """A call of the library: where its text is noted, and the heartbeats since it began."""

    def __init__(self, offset: int):
        self.offset = offset
        self.num_beats = 0


class PoisonTexts:
    """The record of one frontend; thread-safe."""

    def __init__(self, path: Path, index: int, num_frontends: int, *, predecessor_failed: bool = False):
        """`predecessor_failed`: by itself, so a text that it had noted may be the cause."""
        self._counted_at = num_frontends * _NOTES_BYTES
        self._end = self._counted_at + NUM_COUNTED * _COUNTED_BYTES
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._file, 0, self._end)  # a page missing later would be a SIGBUS
            self._memory = mmap.mmap(self._file, self._end)
        except OSError as error:
            log.warning("texts that end frontends will not be found: %s", error)
            self._memory = mmap.mmap(-1, self._end)
        offsets = range(index * _NOTES_BYTES, (index + 1) * _NOTES_BYTES, DIGEST_BYTES)
        self.has_found = self._take_over(offsets) if predecessor_failed else False
        for offset in offsets:
            self._memory[offset : offset + DIGEST_BYTES] = _FREE
        self._free_offsets = [*offsets]
        self._calls: set[_Call] = set()
        self._alone = threading.Lock()  # held during the call for a counted text

    def _take_over(self, offsets: range) -> bool:
        """Count the noted texts; returns whether one of them is refused from now on."""
        counts = []
        for digest in {self._memory[offset : offset + DIGEST_BYTES] for offset in offsets} - {_FREE}:
            counts.append(self._count(digest) + 1)
            self._set_count(digest, counts[-1])
            log.warning("a frontend failed while it tokenized text=%s failures=%d", digest.hex(), counts[-1])
        return DEADLY_FAILURES in counts

    @contextlib.contextmanager
    def noted(self, text: str) -> Iterator[None]:
        """Context of a call of the library. Raises RequestFailed for a text that has ended frontends, and Overloaded
        while another text that may have is worked on."""
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:DIGEST_BYTES]
        count = self._count(digest)
        if count >= DEADLY_FAILURES:
            raise RequestFailed(TOKENIZER_FAILS)
        if count and not self._alone.acquire(blocking=False):
            raise Overloaded("A text that may have ended a process is tokenized alone, and another one is at present.")
        try:
            with self._note(digest):
                yield
            if count:
                self._set_count(digest, 0)
        finally:
            if count:
                self._alone.release()

    @contextlib.contextmanager
    def _note(self, digest: bytes) -> Iterator[None]:
        call = _Call(self._free_offsets.pop())
        self._memory[call.offset : call.offset + DIGEST_BYTES] = digest
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.remove(call)
            self._memory[call.offset : call.offset + DIGEST_BYTES] = _FREE
            self._free_offsets.append(call.offset)

    def check(self) -> None:
        """Call with each heartbeat. Raises PagedServeError when a call does not return: its thread cannot be ended."""
        for call in tuple(self._calls):
            call.num_beats += 1
            if call.num_beats > RETURNS_WITHIN_BEATS:
                raise PagedServeError("the tokenizer hangs: it has worked on one text for a minute")

    def _count(self, digest: bytes) -> int:
        entry = self._entry(digest)
        return 0 if entry < 0 else self._memory[entry + DIGEST_BYTES]

    def _entry(self, digest: bytes) -> int:
        """Where the text is counted; -1: nowhere."""
        return self._memory.find(digest, self._counted_at)

    def _set_count(self, digest: bytes, count: int) -> None:
        """Set the count, in the entry of the text or in place of one with the lowest count."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            if (entry := self._entry(digest)) < 0:
                entries = range(self._counted_at, self._end, _COUNTED_BYTES)
                entry = min(entries, key=lambda each: self._memory[each + DIGEST_BYTES])
            self._memory[entry : entry + _COUNTED_BYTES] = (digest if count else _FREE) + bytes([count])
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

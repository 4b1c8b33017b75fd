"""One rank's tier: takes the core's messages, moves blocks in two threads, and has the answers for the core.

Stores and loads have a thread each, so that a load never waits for stores. A thread begins with a message once the
steps that the worker received before it are done.
"""

import logging
import os
import queue
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from paged_serve.protocol.messages.loading.kv_tiers import (
    KEY_BYTES,
    BlocksMoved,
    DropBlocks,
    FromWorkerTier,
    LoadBlocks,
    OpenTier,
    StoreBlocks,
    TierContents,
    ToWorkerTier,
)
from paged_serve.protocol.messages.message import pack_ids, unpack_ids

from ..distributed.device_thread import device_thread
from ..distributed.threads import run_on
from .block_files import BlockFiles
from .block_memory import BlockMemory
from .checksum import Checksum
from .tier_levels import TierLevels

log = logging.getLogger(__name__)


class Event(Protocol):
    def synchronize(self) -> None:
        """Returns once all steps launched before the event are done."""
        ...


class Mover:
    """A block's way between the cache and its file, for one thread."""

    def __init__(self, memory: BlockMemory, checksum: Checksum):
        self.memory = memory
        self.checksum = checksum

    def store(self, files: TierLevels, block: int, key: bytes) -> bool:
        self.memory.gather(block)
        return files.write(key, self.memory.parts(block), self.checksum)

    def load(self, files: TierLevels, block: int, key: bytes) -> bool:
        """Fill the block; one that cannot be restored never has damaged contents, which might not be finite."""
        parts = self.memory.parts(block)
        if not files.read(key, parts, self.checksum):
            parts.clear()
            return False
        self.memory.scatter(block)
        return True


class Tier:
    """`fd` is readable while `take` has something to return."""

    def __init__(
        self,
        rank: int,
        find_folders: Callable[[Checksum], Sequence[tuple[Path, int]]],
        new_mover: Callable[[], Mover],
        cpus: Sequence[int] = (),
    ):
        """`find_folders` returns the folders of this model and rank with the bytes that each may have, the quickest
        first; it is called in a thread. `cpus`: of the threads.
        """
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rank = rank
        self._find_folders = find_folders
        self._new_mover = new_mover
        self._cpus = cpus
        self._files: TierLevels | None = None  # None: not opened, or it cannot be
        self._answers: deque[FromWorkerTier | Exception] = deque()
        self._stores: queue.SimpleQueue[tuple[ToWorkerTier, Event] | None] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[tuple[ToWorkerTier, Event] | None] = queue.SimpleQueue()
        self._threads = [
            device_thread(partial(self._serve, messages), name)
            for name, messages in (("tier-store", self._stores), ("tier-load", self._loads))
        ]
        for thread in self._threads:
            thread.start()

    def handle(self, message: ToWorkerTier, after: Event) -> None:
        """Queue a message; `after`: the steps launched so far."""
        (self._loads if isinstance(message, LoadBlocks) else self._stores).put((message, after))

    def take(self) -> list[FromWorkerTier]:
        """The answers since the last call. Raises what ended a thread."""
        try:
            os.eventfd_read(self.fd)  # also without an answer: the last call may have taken it before it was signalled
        except BlockingIOError:
            return []
        taken = []
        while self._answers:
            answer = self._answers.popleft()
            if isinstance(answer, Exception):
                raise answer
            taken.append(answer)
        return taken

    def close(self) -> None:
        """Finish all messages and end the threads."""
        for messages in (self._stores, self._loads):
            messages.put(None)
        for thread in self._threads:
            thread.join()
        os.close(self.fd)

    def _serve(self, messages: "queue.SimpleQueue[tuple[ToWorkerTier, Event] | None]") -> None:
        try:
            run_on(self._cpus)
            mover = self._new_mover()
            if messages is self._stores:
                self._open(mover)
            while (next_one := messages.get()) is not None:
                message, after = next_one
                after.synchronize()
                self._do(message, mover)
        except Exception as error:  # `take` raises it again in the loop
            self._answer(error)

    def _do(self, message: ToWorkerTier, mover: Mover) -> None:
        match message:
            case OpenTier(epoch=epoch):
                keys = [] if self._files is None else self._files.keys()
                self._answer(TierContents(epoch, self._rank, b"".join(keys)))
            case StoreBlocks():
                self._store(message, mover)
            case LoadBlocks():
                self._load(message, mover)
            case DropBlocks(epoch=epoch, keys=keys, transfer=transfer):
                gone = [] if self._files is None else self._files.remove(_split(keys))
                self._answer(TierContents(epoch, self._rank, removed=b"".join(gone)))
                self._answer(BlocksMoved(epoch, self._rank, transfer))

    def _open(self, mover: Mover) -> None:
        """Begins before the core's first message: weights may have to be read for their checksums."""
        levels, size = list[BlockFiles](), mover.memory.bytes_per_block
        for folder, max_bytes in self._find_folders(mover.checksum):
            level = BlockFiles(folder, size, max_bytes)
            if not level.max_blocks:
                log.error("%s has no room for a block of %d bytes; it may have %d, raise them", folder, size, max_bytes)
                continue
            try:
                level.open()
            except OSError as error:
                log.error("a level of the KV tier cannot be used: %s", error)
                continue
            levels.append(level)
            log.info("kv tier folder=%s blocks=%d block_bytes=%d", folder, len(level), size)
        if levels:
            self._files = TierLevels(levels)
        else:
            log.error("there is no usable KV tier; no block is stored or loaded")

    def _store(self, message: StoreBlocks, mover: Mover) -> None:
        ids, keys, files = unpack_ids(message.block_ids).tolist(), _split(message.keys), self._files
        changed, failed = dict[bytes, None](), list[int]()
        for index in reversed(range(len(ids))):  # the tail of a prefix is evicted first
            if files is None or files.is_full:
                failed.append(index)
                continue
            changed |= dict.fromkeys([*files.make_room(1), keys[index]])
            if not mover.store(files, ids[index], keys[index]):
                failed.append(index)
        if files is not None and changed:
            added = b"".join(key for key in changed if key in files)
            removed = b"".join(key for key in changed if key not in files)
            self._answer(TierContents(message.epoch, self._rank, added, removed))
        self._answer(BlocksMoved(message.epoch, self._rank, message.transfer, pack_ids(failed)))

    def _load(self, message: LoadBlocks, mover: Mover) -> None:
        ids, keys, files = unpack_ids(message.block_ids).tolist(), _split(message.keys), self._files
        failed = [
            index
            for index in reversed(range(len(ids)))  # the tail of a prefix is evicted first
            if files is None or not mover.load(files, ids[index], keys[index])
        ]
        if failed:
            gone = b"".join(keys[index] for index in failed)
            self._answer(TierContents(message.epoch, self._rank, removed=gone))
        self._answer(BlocksMoved(message.epoch, self._rank, message.transfer, pack_ids(failed)))

    def _answer(self, answer: FromWorkerTier | Exception) -> None:
        self._answers.append(answer)
        os.eventfd_write(self.fd, 1)


def _split(keys: bytes) -> list[bytes]:
    return [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]

"""The stored responses, for the event loop of one frontend."""

import asyncio
import hashlib
import hmac
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ServerConfig

from ..exchange.answer_ids import new_answer_id, owner_of_answer
from ..exchange.auth import Tenant
from ..exchange.errors import HttpError
from .background_run import STORE_AGAIN_S, BackgroundRun, Ended
from .database import Database, Items, Row

log = logging.getLogger(__name__)

WARNS_EVERY_S = 60.0  # while the file fails; requests fail more often
NOT_OPEN = "The stored responses cannot be used: their file cannot be opened. Try again, or send store: false."

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class StoredResponses:
    """Each caller finds only its own responses. Methods raise HttpError 503 when the file fails."""

    def __init__(self, open_database: Callable[[], Database], index: int = 0, num_frontends: int = 1):
        self._open = open_database
        self._database: Database | None = None  # until it is open
        self._index, self._num_frontends = index, num_frontends
        self._thread = ThreadPoolExecutor(1, "responses")
        self._warns_at = 0.0
        self.runs: dict[tuple[bytes, str], BackgroundRun] = {}  # by caller and id
        self._accepting: WeakValueDictionary[tuple[bytes, str], asyncio.Lock] = WeakValueDictionary()
        self.resumed = asyncio.Event()  # set when `runs` has the unfinished responses of an earlier process

    @classmethod
    def of(cls, server: ServerConfig, index: int, *, is_replacement: bool = False) -> "StoredResponses | None":
        """The store of frontend `index`; None when the server stores no responses.

        Raises ConfigError for an unusable file, except if `is_replacement`: the file is then opened when it can be.
        """
        if not server.store_responses:
            return None
        limits = server.stored_responses_bytes, server.stored_responses_days
        store = cls(partial(Database, server.store_responses, *limits), index, server.num_frontends)
        try:
            store._database = store._open()
        except ConfigError as error:
            if not is_replacement:
                raise
            log.error("requests for stored responses are refused until their file can be opened: %s", error)
        return store

    def caller_of(self, tenant: Tenant) -> bytes:
        """An id of the caller that is the same in every run, unlike the name of a tenant. Raises HttpError 503."""
        if not (digest := tenant.key_digest):
            return b""
        if self._database is None:
            raise HttpError(503, NOT_OPEN)
        return hmac.digest(self._database.secret, b"caller " + digest, hashlib.sha256)

    async def until_resumed(self) -> None:
        """Wait until `runs` has the unfinished responses of an earlier process. Raises HttpError 503."""
        if self._database is None:
            raise HttpError(503, NOT_OPEN)
        await self.resumed.wait()

    def new_id(self, created: int) -> str:
        """The id of a new response that this frontend owns, by `owner_of_answer`."""
        return new_answer_id("resp_", created, self._index, self._num_frontends)

    def accepting(self, caller: bytes, key: str) -> asyncio.Lock:
        """Held from the look for a key's response until it is stored, so that a repeated request finds it."""
        return self._accepting.setdefault((caller, key), asyncio.Lock())

    def begin(self, run: BackgroundRun) -> None:
        """Start a run; `find` returns it until it ends."""
        name = run.row.caller, run.row.id
        self.runs[name] = run
        run.start().add_done_callback(lambda task: self.runs.pop(name, None))

    def run_of(self, row: Row) -> BackgroundRun | None:
        return self.runs.get((row.caller, row.id))

    async def add(self, row: Row, items: Items) -> None:
        await self._call(Database.add, row, items)

    async def finish(self, row: Row, ended: Ended, first: int, events: Sequence[bytes]) -> None:
        await self._call(Database.finish, row.caller, row.id, ended.response, ended.items, first, events)

    async def append_events(self, row: Row, first: int, events: Sequence[bytes]) -> None:
        await self._call(Database.append_events, row.caller, row.id, first, events)

    async def num_events(self, row: Row) -> int:
        return await self._call(Database.num_events, row.caller, row.id)

    async def events(self, row: Row, after: int) -> list[bytes]:
        return await self._call(Database.events, row.caller, row.id, after)

    async def events_after(self, row: Row, number: int) -> AsyncGenerator[bytes, None]:
        """The events of a response that has ended."""
        while events := await self.events(row, number):
            number += len(events)
            yield b"".join(events)

    async def find(self, caller: bytes, answer_id: str) -> Row:
        """Also raises HttpError 404. A response that has not ended has a run only once `resumed` is set."""
        row = await self._call(Database.row, caller, answer_id)
        if row is None:
            raise HttpError(404, f"There is no response {answer_id[:100]!r}: it was never stored, or it was deleted.")
        return row

    async def of_key(self, caller: bytes, key: str) -> Row | None:
        return await self._call(Database.row_of_key, caller, key)

    async def item(self, caller: bytes, item_id: str) -> bytes | None:
        return await self._call(Database.item, caller, item_id)

    async def jobs(self) -> list[Row]:
        """The responses of this frontend that have not ended; waits until the file can be read."""
        while True:
            try:
                rows = await self._call(Database.jobs)
                break
            except HttpError:
                await asyncio.sleep(STORE_AGAIN_S)
        return [row for row in rows if owner_of_answer(row.id, self._num_frontends) == self._index]

    async def set_isolations(self, row: Row, count: int) -> None:
        await self._call(Database.set_isolations, row.caller, row.id, count)

    async def delete(self, caller: bytes, answer_id: str) -> None:
        await self._call(Database.delete, caller, answer_id)

    async def _call(
        self,
        function: Callable[Concatenate[Database, _Arguments], _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: function(self._opened(), *args, **kwargs))
        except ConfigError as error:  # its text names the file
            raise HttpError(503, NOT_OPEN) from error
        except sqlite3.Error as error:
            if (now := time.monotonic()) >= self._warns_at:
                self._warns_at = now + WARNS_EVERY_S
                log.warning("the stored responses cannot be used: %s", error)
            message = f"The stored responses cannot be used: {error}. Try again, or send store: false."
            raise HttpError(503, message) from error

    def _opened(self) -> Database:
        """The database, opened now if it could not be before. Raises ConfigError."""
        if self._database is None:
            self._database = self._open()
            log.info("the stored responses can be used again")
        return self._database

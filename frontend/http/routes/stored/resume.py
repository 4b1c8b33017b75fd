"""Resumes background responses that an earlier process of this server left unfinished, from their stored requests.

Each of them may have been the cause if that process failed by itself. Then they are isolated: computed one after
another, which the file counts. A response is given up when processes have failed in DEADLY_ISOLATIONS of its own, and
the others go on. An isolation that ends otherwise, such as by a signal from outside, does not count.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, nullcontext, suppress

import msgspec

from paged_serve.protocol.errors import InvalidRequest, Overloaded, PagedServeError
from paged_serve.protocol.messages.engine_core import DEADLY_ISOLATIONS

from ...exchange.auth import NO_KEY, Tenant
from ...exchange.errors import HttpError
from ...responses.answers import Response, ResponseError
from ...service import Service
from ...stored_responses.background_run import STORE_AGAIN_S, BackgroundRun, Ended
from ...stored_responses.database import Row
from ...stored_responses.store import StoredResponses
from .background_work import BackgroundWork, Job, ended, failed_event

log = logging.getLogger(__name__)

DEADLY = "a frontend failed whenever it was computed"


class Isolation:
    """Computes one response at a time, and counts what has not ended."""

    def __init__(self, store: StoredResponses):
        self._store = store
        self._alone = asyncio.Lock()

    @asynccontextmanager
    async def of(self, row: Row) -> AsyncIterator[None]:
        async with self._alone:
            try:
                await self._store.set_isolations(row, row.isolations + 1)
            except HttpError as error:  # the file cannot be written now; the response waits
                raise Overloaded(error.message, STORE_AGAIN_S) from error
            try:
                yield
            except Overloaded:  # it is tried again
                with suppress(HttpError):
                    await self._store.set_isolations(row, row.isolations)
                raise


class ResumedWork:
    """Produces the events of a resumed response. Its request is prepared as it runs: one that waits for memory takes
    none."""

    def __init__(
        self,
        service: Service,
        tenant: Tenant,
        row: Row,
        job: Job,
        turn: asyncio.Lock,
        refusal: str = "",
        isolation: Isolation | None = None,
    ):
        """`turn`: held to prepare one request at a time. `refusal`: why it cannot be resumed. `isolation`: of all those
        that may have caused the end of an earlier process."""
        self._service, self._tenant, self._row, self._job = service, tenant, row, job
        self._turn, self._refusal, self._isolation = turn, refusal, isolation
        self._work: BackgroundWork | None = None

    @property
    def ended(self) -> Ended | None:
        return None if self._work is None else self._work.ended

    async def events(self) -> AsyncGenerator[list[bytes], None]:
        """All events, from the first one. May be called again after Overloaded."""
        async with nullcontext() if self._isolation is None or self._refusal else self._isolation.of(self._row):
            if self._work is None:
                self._work = await self._prepared()
            async with aclosing(self._work.events()) as batches:
                async for batch in batches:
                    yield batch

    async def _prepared(self) -> BackgroundWork:
        row = self._row
        if self._refusal:
            raise InvalidRequest(f"It could not be resumed: {self._refusal}.")
        async with self._turn:
            try:
                return await BackgroundWork.prepared(self._service, self._tenant, row.id, row.created, self._job)
            except (HttpError, InvalidRequest) as error:
                raise InvalidRequest(f"It could not be resumed: {error.message}.") from error

    def given_up(self, error: PagedServeError | None, num_kept: int) -> tuple[Ended, list[bytes]]:
        if self._work is not None:
            return self._work.given_up(error, num_kept)
        end = ended(_given_up(self._row, None if error is None else str(error)))
        return end, [] if error is None else [failed_event(num_kept, end)]

    def close(self) -> None:
        if self._work is not None:
            self._work.close()


async def resume_responses(service: Service, tenants: Sequence[Tenant], *, predecessor_failed: bool = False) -> bool:
    """Resume all stored jobs; returns whether any is given up because it ended earlier processes.

    `tenants`: those of the server's API keys. `predecessor_failed`: by itself, so one of the jobs may be the cause.
    """
    store, turn = service.stored, asyncio.Lock()
    if store is None:
        return False
    rows = await store.jobs()
    by_caller = {store.caller_of(tenant): tenant for tenant in (NO_KEY, *tenants)}
    isolation, has_deadly = Isolation(store) if predecessor_failed else None, False
    for row in rows:
        if isolation is None and row.isolations:
            with suppress(HttpError):
                await store.set_isolations(row, 0)
        job = msgspec.json.decode(row.job or b"", type=Job)
        tenant, num_stored, refusal = by_caller.get(row.caller), await store.num_events(row), ""
        if tenant is None:
            tenant, refusal = NO_KEY, "its API key is no longer valid on this server"
        elif job.fingerprint != service.fingerprint_with(job.adapter):
            refusal = "the server was restarted with another model or other settings"
        elif isolation is not None and row.isolations >= DEADLY_ISOLATIONS:
            refusal, has_deadly = DEADLY, True
            log.error("response=%s is given up: %s", row.id, DEADLY)
        with ExitStack() as admitted:
            admitted.enter_context(service.admission.entered(tenant.name, tenant.weight, is_accepted=True))
            work = ResumedWork(service, tenant, row, job, turn, refusal, isolation)
            admitted.callback(work.close)
            store.begin(BackgroundRun(store, row, work, admitted.pop_all(), num_stored))
    store.resumed.set()
    return has_deadly


def _given_up(row: Row, error: str | None) -> Response:
    """The response without output; `error` None: it was cancelled."""
    response = msgspec.json.decode(row.response, type=Response)
    response.status = "cancelled" if error is None else "failed"
    response.error = None if error is None else ResponseError(code="server_error", message=error)
    return response

"""Resumes background responses that an earlier process of this server left unfinished, from their stored requests."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing

import msgspec

from paged_serve.protocol.errors import InvalidRequest, PagedServeError

from ...exchange.auth import NO_KEY, Tenant
from ...exchange.errors import HttpError
from ...responses.answers import Response, ResponseError
from ...service import Service
from ...stored_responses.background_run import BackgroundRun, Ended
from ...stored_responses.database import Row
from .background_work import BackgroundWork, Job, ended, failed_event


class ResumedWork:
    """Produces the events of a resumed response. Its request is prepared as it runs: one that waits for memory takes
    none."""

    def __init__(self, service: Service, tenant: Tenant, row: Row, job: Job, turn: asyncio.Lock, refusal: str = ""):
        """`turn`: held to prepare one request at a time. `refusal`: why it cannot be resumed."""
        self._service, self._tenant, self._row, self._job = service, tenant, row, job
        self._turn, self._refusal = turn, refusal
        self._work: BackgroundWork | None = None

    @property
    def ended(self) -> Ended | None:
        return None if self._work is None else self._work.ended

    async def events(self) -> AsyncGenerator[list[bytes], None]:
        """All events, from the first one. May be called again after Overloaded."""
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


async def resume_responses(service: Service, tenants: Sequence[Tenant]) -> None:
    """Resume all stored jobs. `tenants`: those of the server's API keys."""
    store, turn = service.stored, asyncio.Lock()
    if store is None:
        return
    by_caller = {store.caller_of(tenant): tenant for tenant in (NO_KEY, *tenants)}
    for row in await store.jobs():
        job = msgspec.json.decode(row.job or b"", type=Job)
        tenant, num_stored, refusal = by_caller.get(row.caller), await store.num_events(row), ""
        if tenant is None:
            tenant, refusal = NO_KEY, "its API key is no longer valid on this server"
        elif job.fingerprint != service.fingerprint_with(job.adapter):
            refusal = "the server was restarted with another model or other settings"
        with ExitStack() as admitted:
            admitted.enter_context(service.admission.entered(tenant.name, tenant.weight, is_accepted=True))
            work = ResumedWork(service, tenant, row, job, turn, refusal)
            admitted.callback(work.close)
            store.begin(BackgroundRun(store, row, work, admitted.pop_all(), num_stored))
    store.resumed.set()


def _given_up(row: Row, error: str | None) -> Response:
    """The response without output; `error` None: it was cancelled."""
    response = msgspec.json.decode(row.response, type=Response)
    response.status = "cancelled" if error is None else "failed"
    response.error = None if error is None else ResponseError(code="server_error", message=error)
    return response

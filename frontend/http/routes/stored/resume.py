"""Resumes background responses that an earlier process of this server left unfinished, from their stored requests."""

from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from paged_serve.protocol.errors import InvalidRequest, Overloaded

from ...exchange.auth import NO_KEY, Tenant
from ...exchange.errors import HttpError
from ...responses.answers import Response, ResponseError
from ...responses.writer import event
from ...service import Service
from ...stored_responses.background_run import BackgroundRun
from ...stored_responses.database import Row
from ...stored_responses.store import StoredResponses
from .background_work import BackgroundWork, Job, ended


async def resume_responses(service: Service, tenants: Sequence[Tenant]) -> None:
    """Resume all stored jobs. `tenants`: those of the server's API keys."""
    store = service.stored
    if store is None:
        return
    by_caller = {store.caller_of(tenant): tenant for tenant in (NO_KEY, *tenants)}
    for row in await store.jobs():
        job = msgspec.json.decode(row.job or b"", type=Job)
        tenant = by_caller.get(row.caller)
        if tenant is None:
            await _fail(store, row, "its API key is no longer valid on this server")
        elif job.fingerprint != service.fingerprint_of(job.model):
            await _fail(store, row, "the server was restarted with another model or other settings")
        else:
            await _resume(service, store, tenant, row, job)
    store.resumed.set()


async def _resume(service: Service, store: StoredResponses, tenant: Tenant, row: Row, job: Job) -> None:
    num_stored = await store.num_events(row)
    with ExitStack() as admitted:
        admitted.enter_context(service.admission.entered(tenant.name, tenant.weight, is_accepted=True))
        try:
            work = await BackgroundWork.prepared(service, tenant, row.id, row.created, job)
        except (HttpError, InvalidRequest, Overloaded) as error:
            await _fail(store, row, error.message)
            return
        admitted.callback(work.close)
        store.begin(BackgroundRun(store, row, work, admitted.pop_all(), num_stored))


async def _fail(store: StoredResponses, row: Row, why: str) -> None:
    response = msgspec.json.decode(row.response, type=Response)
    response.status = "failed"
    response.error = ResponseError(code="server_error", message=f"It could not be resumed: {why}.")
    num_stored = await store.num_events(row)
    last = [event("response.failed", num_stored, {"response": response})] if row.has_events else []
    await store.finish(row, ended(response), num_stored, last)

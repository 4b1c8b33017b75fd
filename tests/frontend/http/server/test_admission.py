"""The frontend refuses, unread, what the engine would refuse; a tenant that fills the queue blocks no other."""

import contextlib

import msgspec
import pytest

from paged_serve.frontend.admission import Admission
from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.messages.stats import TenantStats

from ...fake_engine import STATS
from ...http_server import Server


def with_queues(*queues, wait_s=0.0):
    return msgspec.structs.replace(STATS, tenants=queues, wait_s=wait_s)


def test_a_full_frontend_refuses_only_the_tenants_that_fill_it():
    admission = Admission(max_active=4)
    with contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(admission.entered("greedy"))
        with pytest.raises(Overloaded), admission.entered("greedy"):
            pass
        for _ in range(2):
            held.enter_context(admission.entered("modest"))
        with pytest.raises(Overloaded), admission.entered("modest"):
            pass
        held.enter_context(admission.entered("heavy", 6.0))
        assert admission.num_active == 7
    assert admission.num_active == 0
    with admission.entered("greedy"):
        pass


def test_the_frontend_refuses_requests_that_the_engine_has_no_room_for():
    admission = Admission(max_active=100, stats=lambda: stats)
    stats = with_queues(TenantStats("greedy", 50, 7.5, True), TenantStats("modest", 2, 3.0, False))
    with pytest.raises(Overloaded) as refused, admission.entered("greedy"):
        pass
    assert refused.value.retry_after_s == 7.5
    assert refused.value.message.startswith("50 sequences wait already")
    for tenant in ("modest", "new"):
        with admission.entered(tenant):
            pass
    stats = None  # the engine is away: its last stats do not count
    with admission.entered("greedy"):
        pass


@pytest.mark.parametrize(("tenant", "wait_s"), [("waits", 5.0), ("new", 2.0)])
def test_the_frontend_refuses_a_time_limit_that_cannot_be_met(tenant, wait_s):
    stats = with_queues(TenantStats("waits", 2, 5.0, False), wait_s=2.0)
    admission = Admission(max_active=100, stats=lambda: stats)
    admission.check_time_limit(tenant, 0.0)
    admission.check_time_limit(tenant, wait_s + 0.5)
    with pytest.raises(Overloaded, match=r"timeout=1: the first token is expected in about \d s") as refused:
        admission.check_time_limit(tenant, 1.0)
    assert refused.value.retry_after_s == wait_s - 1.0


def test_the_body_of_a_refused_http_request_is_not_read(folder):
    server = Server(folder)
    server.engine.stats = with_queues(TenantStats("", 50, 7.5, True))
    server.admission._stats = lambda: server.engine.stats
    refused = server.ask("POST", "/v1/completions", b"this is no JSON")
    assert (refused.status_code, refused.headers["retry-after"], refused.headers["retry-after-ms"]) == (
        429,
        "8",
        "7500",
    )
    server.engine.stats = with_queues(TenantStats("", 2, 7.5, False))
    refused = server.ask("POST", "/v1/completions", {"prompt": "x", "timeout": 2})
    assert (refused.status_code, refused.headers["retry-after-ms"]) == (429, "5500")
    assert server.engine.requests == []
    assert server.ask("POST", "/v1/completions", {"prompt": "x", "timeout": 9}).status_code == 200

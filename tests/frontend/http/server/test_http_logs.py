"""Logs and metrics of requests: a line per request, a line every ten seconds, a count of disconnected clients."""

import asyncio
import logging
import re

import msgspec
import pytest

from paged_serve.frontend.http.exchange import access_log
from paged_serve.frontend.http.exchange.access_log import configure_access_log
from paged_serve.frontend.http.server import throughput_log

from ...fake_engine import STATS
from ...http_server import Server
from ..connections.test_http_memory import Sender
from ..connections.test_http_protocol import exchange


@pytest.fixture
def lines(caplog):
    """The lines logged at debug level or above."""
    caplog.set_level(logging.DEBUG)
    for logger in (access_log.log, throughput_log.log):
        logger.disabled = False
    yield lambda: [record.getMessage() for record in caplog.records if "status=" in record.getMessage()]
    configure_access_log(True)


def test_each_request_has_an_access_line_with_its_figures(folder, lines, caplog):
    server = Server(folder)
    server.ask("POST", "/v1/completions?key=secret", {"prompt": "x"}, **{"x-request-id": "abc"})
    server.ask("GET", "/nowhere")
    server.ask("GET", "/live")
    good, missing, _ = lines()
    expected = r"method=POST path=/v1/completions status=200 duration_ms=\d+\.\d client=127\.0\.0\.1:\d+ request_id=abc"
    assert re.fullmatch(expected, good)
    assert missing.startswith("method=GET path=/nowhere status=404 ")
    assert [record.levelname for record in caplog.records if "status=" in record.getMessage()] == ["INFO"] * 2 + [
        "DEBUG"
    ]


def test_access_lines_can_be_turned_off(folder, lines):
    configure_access_log(False)
    Server(folder).ask("GET", "/version")
    assert lines() == []


def test_malformed_bytes_have_an_access_line_that_says_why(lines):
    exchange(b"nonsense\r\n\r\n")
    exchange(b"\x16\x03\x01 the rest of a TLS handshake")
    nonsense, tls = lines()
    assert re.fullmatch(r"status=400 client=127\.0\.0\.1:\d+ error='Invalid HTTP request received\.'", nonsense)
    assert " error='The connection began with TLS, " in tls


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_a_client_that_leaves_is_counted_and_logged(folder, lines, stream):
    server = Server(folder, "x" * 40)
    server.engine.pause_s = 0.01
    body = b'{"prompt": ["x", "y"], "n": 2, "temperature": 1, "max_tokens": 40, "stream": %s}' % stream

    async def talk() -> None:
        sender = Sender(server, "/v1/completions", body)
        sender.body_comes.set()
        while len(server.engine.requests) < 2:
            await asyncio.sleep(0)
        sender.leaves.set()
        await sender.task

    asyncio.run(talk())
    assert 'finished_reason="abort",frontend="0",model_name="tiny"} 4.0' in server.metrics()
    assert 'finished_reason="stop",frontend="0",model_name="tiny"} 0.0' in server.metrics()
    (line,) = lines()
    assert "status=499" in line or stream == b"true"


def test_a_scrape_reports_the_current_values(folder):
    """An idle engine reports its values only twice a second."""
    server = Server(folder)
    stats = server.engine.stats

    async def utility(_: object) -> bytes:
        now = msgspec.structs.replace(stats, num_running=0)
        return msgspec.json.encode(msgspec.structs.asdict(now))

    server.engine.utility = utility
    assert stats.num_running == 1
    assert re.search(r"^paged:num_requests_running\{.*\} 0\.0$", server.metrics(), re.MULTILINE)


def test_a_stats_line_is_logged_every_ten_seconds_while_there_is_work(caplog):
    caplog.set_level(logging.INFO)
    throughput = throughput_log.ThroughputLog()
    idle = msgspec.structs.replace(STATS, num_running=0, num_waiting=0)
    busy = msgspec.structs.replace(
        STATS,
        step=idle.step + 10,
        num_running=3,
        prompt_tokens=idle.prompt_tokens + 1000,
        generation_tokens=idle.generation_tokens + 505,
        prefix_cache_queries=idle.prefix_cache_queries + 200,
        prefix_cache_hits=idle.prefix_cache_hits + 50,
    )
    for now, stats in ((0.0, idle), (9.9, idle), (10.0, idle), (15.0, busy)):
        throughput.check(now, stats)
    assert caplog.records == []
    throughput.check(20.0, busy)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "throughput prompt_tokens_per_s=100.0 generation_tokens_per_s=50.5 running=3 waiting=2 kv_cache_usage=0.25 "
        "prefix_cache_hit_rate=0.25"
    )
    throughput.check(25.0, None)  # the engine is away, and its successor counts from zero
    throughput.check(40.0, idle)
    assert len(caplog.records) == 1

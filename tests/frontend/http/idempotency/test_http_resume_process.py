"""A frontend process whose client disconnects: an answer with a key continues for a while."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest
from paged_serve.protocol.messages.sampling_params import FinishReason

from ...fake_core import output

BODY = json.dumps({"prompt": "x", "max_tokens": 4, "stream": True, "return_token_ids": True}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\nidempotency-key: k\r\n\r\n" % len(
    BODY
)


@contextlib.contextmanager
def asked(frontend) -> Iterator[socket.socket]:
    """A connection that has sent the request; the end of the context closes it."""
    with socket.create_connection(("127.0.0.1", frontend.port), timeout=60) as link:
        link.sendall(HEAD + BODY)
        yield link


def first_event(link: socket.socket) -> tuple[str, bytes]:
    """(id, bytes) of the first event."""
    answer = b""
    while (found := answer.find(b"id: cmpl-")) < 0 or b"\n\n" not in answer[found:]:
        part = link.recv(4096)
        assert part, answer
        answer += part
    event = answer[found : answer.index(b"\n\n", found) + 2]
    return event[4 : event.index(b"\n")].decode(), event


def test_a_stream_continues_without_its_client_even_while_the_server_drains(start_frontend, start_core):
    frontend, core = start_frontend(resume_grace_s=600), start_core()
    frontend.wait_for(control.Ready)
    with asked(frontend) as link:
        request = core.wait_for(EngineCoreRequest)[0]
        core.do(output(core.epoch, request.request_id, 0, [65]))
        event_id, event = first_event(link)
    core.do(output(core.epoch, request.request_id, 1, [66, 67]))
    frontend.send(control.Drain())
    while frontend.get("/ready")[0] == 200:
        time.sleep(0.01)
    stream = event_id.partition(":")[0]
    with socket.create_connection(("127.0.0.1", frontend.port), timeout=60) as link:
        line = f"GET /v1/streams/{stream} HTTP/1.1\r\nhost: localhost\r\nlast-event-id: {event_id}\r\n\r\n"
        link.sendall(line.encode())
        again_id, _ = first_event(link)
        assert again_id == f"{stream}:2"
        core.do(output(core.epoch, request.request_id, 3, [68], FinishReason.LENGTH))
        rest = b""
        while b"[DONE]" not in rest:
            part = link.recv(4096)
            assert part, rest
            rest += part
    assert not core.all(AbortRequests)
    frontend.wait_for(control.Drained)
    _, whole = frontend.get(f"/v1/streams/{stream}")
    assert whole.startswith(event)
    tokens = [json.loads(line[6:])["choices"][0]["token_ids"] for line in whole.splitlines() if b"data: {" in line]
    assert tokens == [[65], [66], [67], [68]]


def test_a_stream_without_a_returning_client_is_aborted(start_frontend, start_core):
    frontend, core = start_frontend(resume_grace_s=0.1), start_core()
    frontend.wait_for(control.Ready)
    with asked(frontend) as link:
        request = core.wait_for(EngineCoreRequest)[0]
        core.do(output(core.epoch, request.request_id, 0, [65]))
        event_id, _ = first_event(link)
    assert core.wait_for(AbortRequests)[0].stream_ids == (request.request_id,)
    assert frontend.get(f"/v1/streams/{event_id.partition(':')[0]}")[0] == 410


def test_a_request_without_output_also_continues(start_frontend, start_core):
    frontend, core = start_frontend(resume_grace_s=600), start_core()
    frontend.wait_for(control.Ready)
    with asked(frontend) as link:
        request = core.wait_for(EngineCoreRequest)[0]
    with asked(frontend) as link:
        core.do(output(core.epoch, request.request_id, 0, [65], FinishReason.STOP))
        assert first_event(link)[0].endswith(":1")
    assert len(core.all(EngineCoreRequest)) == 1

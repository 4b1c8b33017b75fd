"""No single request blocks the event loop: long work runs in a thread or in steps, or is refused first."""

import msgspec
import pytest

from ...http_server import Server
from .event_loop_turns import check_no_delay
from .most_work import MOST_WORK


@pytest.mark.parametrize(
    ("path", "body"),
    MOST_WORK,
    ids=lambda value: "" if isinstance(value, str) else "+".join(value)[:60],
)
def test_one_request_does_not_delay_the_others(folder, path, body):
    server = Server(folder)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=2_000_000)
    if isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], (str, list)):
        server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=100_000)
    check_no_delay(server, path, body)

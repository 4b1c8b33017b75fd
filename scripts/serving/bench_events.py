"""Measure the frontend's CPU time per streamed event, with and without an Idempotency-Key, from deltas to bytes.

The interpreter is the limit: detokenization, the event's JSON, and the write to the connection; with a key also the
event numbers and the answer's own task. The engine and the connection are fakes of the tests, so that nothing else is
measured.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.frontend.http_server import Server, make_model_folder

NUM_TOKENS = 300
MESSAGES = [{"role": "user", "content": "x"}]
ASKED = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES},
}
NUM_OTHER = {"/v1/completions": 1, "/v1/chat/completions": 2, "/v1/messages": 5}  # events that carry no token


async def stream(server: Server, path: str, key: str) -> int:
    """Read one stream and return its number of events. `key` "": no Idempotency-Key."""
    body = json.dumps({**ASKED[path], "max_tokens": NUM_TOKENS, "stream": True}).encode()
    received, num_events = False, 0

    async def receive() -> dict[str, Any]:
        nonlocal received
        if received:
            await asyncio.Event().wait()
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal num_events
        num_events += message.get("body", b"").count(b"data: ")

    headers = [(b"host", b"localhost"), *([(b"idempotency-key", key.encode())] if key else [])]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    await server.app(scope, receive, send)
    assert num_events == NUM_TOKENS + NUM_OTHER[path], num_events
    return num_events


async def us_per_event(server: Server, path: str, keyed: bool, runs: int, streams: int) -> float:
    times = []
    for run in range(runs):
        began, num_events = time.perf_counter(), 0
        for number in range(streams):
            num_events += await stream(server, path, f"{run}-{number}" if keyed else "")
        times.append((time.perf_counter() - began) / num_events * 1e6)
        server.engine.requests.clear()
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--streams", type=int, default=8, help="number per run, one after another")
    parser.add_argument("--path", choices=[*ASKED], default="/v1/completions")
    parser.add_argument("--burst", type=int, default=1, help="tokens per delta")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(make_model_folder(Path(folder) / "model"), "hello world " * 25, ends=False)
        server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=4096)
        server.engine.burst = options.burst
        for keyed in (False, True):
            cost = asyncio.run(us_per_event(server, options.path, keyed, options.runs, options.streams))
            print(
                json.dumps(
                    {"path": options.path, "keyed": keyed, "burst": options.burst, "us_per_event": round(cost, 1)}
                )
            )


if __name__ == "__main__":
    main()

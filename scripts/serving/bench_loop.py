"""Measure how long a single request can block the frontend's event loop.

    python scripts/serving/bench_loop.py [--repeats 5] [serve options]

Starts its own server, with the built-in demo model unless an option names another. 27 requests that cause the most work
known run one after another, while another connection requests /live every millisecond. Prints, per request, the longest
response time of /live, as the minimum over the repeats: a pause of the machine affects some repeats, the request itself
affects all. Target: 50 ms. The figures are wall time, so run this on an idle machine.
"""

import argparse
import json
import multiprocessing
import socket
import sys
import time
from array import array
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench_overload import serving

from paged_serve.frontend.bench.report.report import environment
from tests.frontend.http.connections.most_work import MOST_WORK

TARGET_S = 0.05
ASK_EVERY_S = 0.001
LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def poll_live(address: tuple[str, int], over: Event, result: Connection) -> None:
    """Request /live until `over` is set, then send the times of all requests and answers (`time.perf_counter`)."""
    times = array("d")
    with socket.create_connection(address) as connection:
        while not over.wait(ASK_EVERY_S):
            times.append(time.perf_counter())
            connection.sendall(LIVE)
            assert b" 200 " in connection.recv(4096)
            times.append(time.perf_counter())
    result.send_bytes(times.tobytes())


def exchange(address: tuple[str, int], path: str, body: bytes) -> int:
    """Send one request; returns its status when the response is complete."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with socket.create_connection(address) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = int(connection.recv(65536)[9:12])
        while connection.recv(1 << 20):
            pass
    return status


def measure(address: tuple[str, int], repeats: int) -> list[tuple[str, int, float]]:
    """For each request: its name, its status, and the longest wait of /live meanwhile in seconds."""
    ours, theirs = multiprocessing.Pipe()
    over = multiprocessing.Event()
    asker = multiprocessing.Process(target=poll_live, args=(address, over, theirs), daemon=True)
    asker.start()
    spans: list[list[tuple[float, float]]] = []
    statuses = []
    for path, body in MOST_WORK:
        data = json.dumps(body, separators=(",", ":")).encode()
        spans.append([])
        for _ in range(repeats):
            begin = time.perf_counter()
            status = exchange(address, path, data)
            spans[-1].append((begin, time.perf_counter()))
        statuses.append(status)
    over.set()
    times = array("d")
    times.frombytes(ours.recv_bytes())
    asker.join()
    waits = list(zip(times[::2], times[1::2], strict=True))
    return [
        (f"{path} {'+'.join(body)[:60]}", status, min(longest_wait(waits, *span) for span in of_one))
        for (path, body), status, of_one in zip(MOST_WORK, statuses, spans, strict=True)
    ]


def longest_wait(waits: list[tuple[float, float]], begin: float, end: float) -> float:
    return max((answered - asked for asked, answered in waits if asked < end and answered > begin), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options, serve_options = parser.parse_known_args()
    with serving(["--no-standby-workers", "--max-num-queued-requests", "4096", *serve_options], []) as running:
        host, port = running.url.removeprefix("http://").split(":")
        found = measure((host, int(port)), options.repeats)
    for name, status, wait_s in sorted(found, key=lambda entry: -entry[2]):
        print(f"{1e3 * wait_s:6.1f} ms  {status}  {name}")
    worst = max(wait_s for _, _, wait_s in found)
    print(json.dumps({"bench": "loop", **environment(), "worst, s": worst, "met": worst < TARGET_S}))


if __name__ == "__main__":
    main()

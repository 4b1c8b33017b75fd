"""A worker is killed in the middle of a stream. The stream pauses, continues with the right next token, and has the
same bytes as without the kill.

Run it:

    python examples/streams_that_survive_kills.py [MODEL]
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

REQUEST = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 1.0, "seed": 7, "ignore_eos": True}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_ready(server: subprocess.Popen, url: str) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/ready")
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the server ended with exit code {server.returncode}")


def stream(url: str) -> Iterator[str]:
    """Yield the pieces of one completion as they arrive."""
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    body = json.dumps({**REQUEST, "model": model, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))["choices"][0]["text"]


def worker_of(server: subprocess.Popen) -> int:
    """The process id of the worker, a child of the supervisor."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith("worker"))


def main(*model: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "paged_serve", "serve", *model, "--port", str(port)])
    try:
        wait_ready(server, url)
        undisturbed = "".join(stream(url))
        disturbed, killed_after, longest_pause_s, last = "", 0, 0.0, time.monotonic()
        for text in stream(url):
            longest_pause_s, last = max(longest_pause_s, time.monotonic() - last), time.monotonic()
            disturbed += text
            if not killed_after and len(disturbed) > 40:
                os.kill(worker_of(server), signal.SIGKILL)
                killed_after = len(disturbed)
    finally:
        server.terminate()
        server.wait()
    print(f"worker killed after {killed_after} characters; the longest pause was {longest_pause_s:.2f} s")
    print("the same bytes" if disturbed == undisturbed else "DIFFERENT BYTES")
    sys.exit(disturbed != undisturbed or killed_after in (0, len(disturbed)))


if __name__ == "__main__":
    main(*sys.argv[1:])

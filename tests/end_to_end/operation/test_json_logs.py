"""With JSON logs everything on a server's stderr is JSON: banner, steps, access lines, and a refused start."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from typing import IO, Any

from ..serving import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PAGED_SERVE_LOG_FORMAT": "json"}


def start(*options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "paged_serve", *options]
    return subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def ready_line(stream: IO[str], lines: list[dict[str, Any]]) -> dict[str, Any]:
    for line in stream:
        lines.append(json.loads(line))
        if lines[-1]["message"] == "paged-serve is ready":
            return lines[-1]
    raise AssertionError(f"the server has ended: {lines}")


def test_everything_that_a_server_logs_is_json() -> None:
    lines = list[dict[str, Any]]()
    options = ("--port", "0", "--threads", "1", "--num-blocks", "64", "--max-model-len", "128", "--no-standby-workers")
    with start(*options, "--log-level", "debug") as process:
        assert process.stderr is not None
        facts = ready_line(process.stderr, lines)["facts"]
        assert facts["note"].startswith("demo model")
        body = json.dumps({"prompt": "The capital", "max_tokens": 4, "temperature": 0}).encode()
        headers = {"Content-Type": "application/json", "X-Request-Id": "abc"}
        urllib.request.urlopen(
            urllib.request.Request(facts["http"] + "/v1/completions", body, headers), timeout=60
        ).read()
        process.send_signal(signal.SIGTERM)
        lines += [json.loads(line) for line in process.stderr]
        assert process.wait(60) == 0
    (access,) = [line for line in lines if line.get("request_id") == "abc"]
    assert (access["method"], access["path"], access["status"]) == ("POST", "/v1/completions", 200)
    steps = [line["message"] for line in lines if line["process"] == "engine-core-0" and line["level"] == "debug"]
    assert sum(message.startswith("step=") for message in steps) >= 4


def test_a_refused_start_reports_the_reason_in_json() -> None:
    for options in (("/nowhere", "--port", "0"), ("--no-such-option",)):
        with start(*options) as process:
            assert process.stderr is not None
            (line,) = [json.loads(line) for line in process.stderr]
            assert process.wait(60) == 2
        assert line["level"] == "error"
        assert options[0].lstrip("-") in line["message"]

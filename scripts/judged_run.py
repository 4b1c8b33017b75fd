"""Run a server for one long comparison, and keep its log after a failure."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.end_to_end.server_process import ServerProcess


def judged_run(options: tuple[str, ...], command_line: str, judge: Callable[[ServerProcess], tuple[str, bool]]) -> int:
    """`judge` returns (report, whether the run succeeded). Returns the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="judged-"))
    server = ServerProcess(folder, *options)
    print(command_line, flush=True)
    is_good = False
    try:
        report, is_good = judge(server)
        print(report)
    finally:
        server.close()
        if is_good:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"FAILED; replay with: {command_line}\nthe server's log: {folder}/stderr", flush=True)
    return 0 if is_good else 1

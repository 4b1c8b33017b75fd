"""Run a server for one long comparison, and keep its log after a failure."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.end_to_end.server_process import ServerProcess


def judged_run(
    options: tuple[str, ...],
    command_line: str,
    judge: Callable[[ServerProcess], tuple[str, bool]],
    prepare: Callable[[Path], None] = lambda folder: None,
) -> int:
    """Returns the exit code.

    `judge` returns (report, whether the run succeeded); `prepare` fills the folder in which the server runs.
    """
    folder = Path(tempfile.mkdtemp(prefix="judged-"))
    prepare(folder)
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

"""The processes of `paged-serve serve` but for HTTP, started by this program and ended with it."""

import threading

from paged_serve.protocol.messages.config import Config

from ..progress_bar import LoadingBar
from ..supervision.supervisor import Supervisor

START_TIMEOUT_S = 3600.0  # large models load for long; a failure is reported at once
CONNECT_TIMEOUT_S = 60.0


class LocalEngine:
    """An engine core and its workers, and the thread of their supervisor. `start` once, then `end`."""

    def __init__(self, config: Config):
        self.supervisor = Supervisor(config)
        # A daemon: at the program's end other threads are joined before the finalizer that would stop this one.
        self._thread = threading.Thread(target=self.supervisor.run, name="supervisor", daemon=True)

    @property
    def run_dir(self) -> str:
        """Where clients find the engine."""
        return self.supervisor.run_dir

    def start(self) -> None:
        """Returns when the engine takes requests. Raises ConfigError when it is refused, EngineDead when it cannot
        start or `stop` was called meanwhile; no process is left then."""
        supervisor, bar = self.supervisor, LoadingBar()
        supervisor.start()
        try:
            supervisor.wait_ready(START_TIMEOUT_S, bar)
        except BaseException:  # a failed start has ended by itself; ctrl-C has not
            supervisor.stop()
            supervisor.run()
            raise
        finally:
            bar.clear()
        self._thread.start()

    def stop(self) -> None:
        """Ask for the end, from any thread."""
        self.supervisor.stop()

    def end(self) -> None:
        """No process is left when this returns. Safe to call twice, and after a start that failed."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def why(self, error: Exception) -> str:
        """The engine's end as its client and its supervisor report it."""
        return f"{error}: {self.supervisor.reason}" if self.supervisor.reason else str(error)


def max_in_flight(config: Config) -> int:
    """Sequences that keep every row busy, and fewer than would be rejected."""
    scheduler = config.scheduler
    return min(4 * scheduler.max_num_seqs, scheduler.max_num_seqs + scheduler.max_num_queued_requests // 2)

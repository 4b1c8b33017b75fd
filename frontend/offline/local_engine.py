"""The processes of `paged-serve serve` except the HTTP frontend, started by this program and ended with it."""

import threading

import msgspec

from paged_serve.protocol.messages.config import Config

from ..progress_bar import LoadingBar
from ..supervision.supervisor import Supervisor

START_TIMEOUT_S = 3600.0  # large models take long to load; a failure is reported at once
CONNECT_TIMEOUT_S = 60.0


class LocalEngine:
    """An engine core, its workers, and the thread of their supervisor. Call `start` once, then `end`."""

    def __init__(self, config: Config):
        own = msgspec.structs.replace(config.server, wake_supervisor=False)  # the program may be suspended
        self.supervisor = Supervisor(msgspec.structs.replace(config, server=own))
        # A daemon, because at exit Python joins other threads before it runs the finalizer that stops this one.
        self._thread = threading.Thread(target=self.supervisor.run, name="supervisor", daemon=True)

    @property
    def run_dir(self) -> str:
        """The run directory, by which clients find the engine."""
        return self.supervisor.run_dir

    def start(self) -> None:
        """Wait until the engine accepts requests.

        Raises ConfigError if the configuration is refused, EngineDead if the engine cannot start or `stop` was called
        meanwhile; no process is left then.
        """
        supervisor, bar = self.supervisor, LoadingBar()
        supervisor.start()
        try:
            supervisor.wait_ready(START_TIMEOUT_S, bar)
        except BaseException:  # a failed start has ended its processes; after ctrl-C they still run
            supervisor.stop()
            supervisor.run()
            raise
        finally:
            bar.clear()
        self._thread.start()

    def stop(self) -> None:
        """Request the end of the engine. Thread-safe."""
        self.supervisor.stop()

    def end(self) -> None:
        """End all processes and wait for them. May be called twice, and after a failed start."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def why(self, error: Exception) -> str:
        """Why the engine ended, from its client's error and its supervisor's report."""
        return f"{error}: {self.supervisor.reason}" if self.supervisor.reason else str(error)


def max_in_flight(config: Config) -> int:
    """The number of sequences that keeps every row busy and is below the limit of admission."""
    scheduler = config.scheduler
    return min(4 * scheduler.max_num_seqs, scheduler.max_num_seqs + scheduler.max_num_queued_requests // 2)

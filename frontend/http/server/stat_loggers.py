"""Passes the engine's statistics to the plugins' stat loggers, several times per second, in the first frontend."""

import logging
from typing import Protocol

from paged_serve.protocol.messages.stats import SchedulerStats
from paged_serve.protocol.plugins import PluginKind, load_plugins

log = logging.getLogger(__name__)


class StatLogger(Protocol):
    """Receives the engine's statistics; constructed with the model's name. Must not block the frontend's event loop."""

    def record(self, stats: SchedulerStats) -> None: ...


class StatLoggers:
    """The stat loggers that the configuration names."""

    def __init__(self, plugins: tuple[str, ...], model_name: str):
        classes: dict[str, type[StatLogger]] = load_plugins(PluginKind.STAT_LOGGER, plugins, type)
        self._loggers = {name: made(model_name) for name, made in classes.items()}  # type: ignore[call-arg]

    def check(self, stats: SchedulerStats | None) -> None:
        """Pass `stats` to each logger; None means that the engine is away. A logger that raises is removed."""
        if stats is None:
            return
        for name, logger in list(self._loggers.items()):
            try:
                logger.record(stats)
            except Exception:  # a plugin's error must not stop the frontend
                log.exception("stat logger ends name=%s", name)
                del self._loggers[name]

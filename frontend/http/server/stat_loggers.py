"""Stat loggers of plugins: they get the engine's figures several times a second, in the first frontend."""

import logging
from typing import Protocol

from paged_serve.protocol.messages.engine_core import SchedulerStats
from paged_serve.protocol.plugins import PluginKind, load_plugins

log = logging.getLogger(__name__)


class StatLogger(Protocol):
    """Made with the model's name. It must not block: the frontend's loop calls it."""

    def record(self, stats: SchedulerStats) -> None: ...


class StatLoggers:
    """Those that the configuration names."""

    def __init__(self, plugins: tuple[str, ...], model_name: str):
        classes: dict[str, type[StatLogger]] = load_plugins(PluginKind.STAT_LOGGER, plugins, type)
        self._loggers = {name: made(model_name) for name, made in classes.items()}  # type: ignore[call-arg]

    def look(self, stats: SchedulerStats | None) -> None:
        """None: the engine is away. A logger that raises gets no more."""
        if stats is None:
            return
        for name, logger in list(self._loggers.items()):
            try:
                logger.record(stats)
            except Exception:  # another package's code: requests go on without it
                log.exception("stat logger ends name=%s", name)
                del self._loggers[name]

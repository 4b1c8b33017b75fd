"""Stat loggers: one that writes a line for the first step that it sees, and one that fails."""

import logging

from paged_serve.protocol.messages.stats import SchedulerStats

log = logging.getLogger(__name__)


class Stats:
    def __init__(self, model_name: str):
        self._model_name = model_name
        self._seen = False

    def record(self, stats: SchedulerStats) -> None:
        if stats.generation_tokens and not self._seen:
            self._seen = True
            log.warning("acme has seen tokens model=%s", self._model_name)


class Faulty:
    def __init__(self, model_name: str):
        pass

    def record(self, stats: SchedulerStats) -> None:
        raise RuntimeError("no figures today")

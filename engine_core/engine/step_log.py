"""Writes a line for each step sent and answered, so that a crash report shows the engine's last steps."""

import logging
import time
from collections.abc import Callable

from paged_serve.protocol.messages.worker import ModelRunnerOutput

from ..scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)


class StepLog:
    """Only numbers are logged, never request content. `t` is in seconds since 1970."""

    def __init__(self, note: Callable[[str], None]):
        self._note = note

    def sent(self, scheduler: Scheduler) -> None:
        plan, pool = scheduler.in_flight[-1], scheduler.kv_cache.pool
        self._note(
            f"step sent n={plan.step} t={time.time():.4f} tokens={plan.num_tokens} rows={len(plan.decode)} "
            f"chunks={len(plan.chunks)} admitted={len(plan.admitted)} running={len(scheduler.running)} "
            f"waiting={len(scheduler.waiting)} free={pool.num_free} blocks={pool.num_blocks} cached={pool.num_cached}"
        )
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "step=%d tokens=%d rows=%d chunks=%d admitted=%d running=%d waiting=%d free_blocks=%d num_blocks=%d",
                *(plan.step, plan.num_tokens, len(plan.decode), len(plan.chunks), len(plan.admitted)),
                *(len(scheduler.running), len(scheduler.waiting), pool.num_free, pool.num_blocks),
            )

    def answered(self, output: ModelRunnerOutput) -> None:
        self._note(f"step answered n={output.step} t={time.time():.4f} computed_s={output.step_s:.5f}")

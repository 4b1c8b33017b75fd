"""Which LoRA adapters the workers must load before the next step is planned; moves the sequences that this concerns."""

from paged_serve.protocol.messages.adapters import LoadAdapter

from .scheduler import Scheduler


def take_loads(scheduler: Scheduler) -> list[LoadAdapter]:
    """The messages for all ranks, usually none. While sequences are isolated, only the one that may run has a load."""
    adapters, waiting = scheduler.waiting.adapters, scheduler.waiting
    if not adapters.uses:
        return []
    oldest = scheduler.in_flight[0].step if scheduler.in_flight else None
    candidate = scheduler.worker_poison.first()
    if candidate is not None:
        may_displace = oldest is None and not scheduler.running
        loads, reopened, displaced = adapters.take_load_for(candidate, may_displace=may_displace)
        waiting.hold(displaced)
    elif scheduler.worker_poison.is_closed:
        return []
    else:
        loads, reopened = adapters.take_loads(scheduler.step, oldest)
    for use in reopened:
        waiting.release(use)
    return loads

"""The engine's side of KV tiers: the messages to send to the workers, and what their answers mean."""

from typing import Protocol, assert_never

from paged_serve.protocol.messages.loading.kv_tiers import BlocksMoved, FromWorkerTier, TierContents, ToWorkerTier

from ..kv.kv_cache import KVCache
from ..scheduling.loading import CONTENTS
from ..scheduling.scheduler import Scheduler


class Engine(Protocol):
    """The parts of EngineCore that tiers concern."""

    worker_epoch: int
    kv_cache: KVCache
    scheduler: Scheduler


def take_tier_messages(engine: Engine, now: float) -> list[ToWorkerTier]:
    """The messages for all ranks; call it after the steps that can be planned were sent."""
    if (tiers := engine.kv_cache.tiers) is None:
        return []
    engine.scheduler.loading.expire(now)
    return tiers.take_messages(engine.worker_epoch, now)


def tier_answered(engine: Engine, message: FromWorkerTier, now: float) -> None:
    """Apply a rank's message. One of a former worker group is dropped."""
    tiers = engine.kv_cache.tiers
    if tiers is None or message.epoch != engine.worker_epoch:
        return
    match message:
        case TierContents():
            was_known = tiers.index.is_known
            tiers.contents(message)
            if tiers.index.is_known and not was_known:
                engine.scheduler.loading.ended(CONTENTS, [])
        case BlocksMoved():
            if (ended := tiers.moved(message, now)) is not None:
                number, transfer = ended
                engine.kv_cache.end_transfer(transfer)
                if transfer.sequence is not None:
                    engine.scheduler.loading.ended(number, transfer.keys)
        case _:
            assert_never(message)

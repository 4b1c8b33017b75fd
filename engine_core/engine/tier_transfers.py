"""The engine's side of KV tiers: the messages to send to the workers, and what their answers mean."""

from typing import TYPE_CHECKING, assert_never

from paged_serve.protocol.messages.kv_tiers import BlocksMoved, FromWorkerTier, TierContents, ToWorkerTier

from ..scheduling.loading import CONTENTS

if TYPE_CHECKING:
    from .engine import EngineCore


def open_tiers(engine: "EngineCore") -> None:
    """Let the KV cache use tiers, if they are configured."""
    if engine.config.kv_tier.dir and engine.kv_cache.prefix_cache.enabled:
        num_ranks = engine.config.parallel.tensor_parallel_size
        engine.kv_cache.open_tiers(num_ranks, engine.facts.kv_bytes_per_block)
        engine.scheduler.loading.prompt_token_s = engine.admission.forecast.prompt_token_s


def take_tier_messages(engine: "EngineCore", now: float) -> list[ToWorkerTier]:
    """The messages for all ranks; call it after the steps that can be planned were sent."""
    if (tiers := engine.kv_cache.tiers) is None:
        return []
    engine.scheduler.loading.expire(now)
    return tiers.take_messages(engine.worker_epoch, now)


def tier_answered(engine: "EngineCore", message: FromWorkerTier, now: float) -> None:
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

"""What a client is told when it says Hello."""

from paged_serve.protocol.messages.engine_core import CoreFailure, Welcome

from .engine import EngineCore


def welcome(engine: EngineCore, known: bool, failures: tuple[CoreFailure, ...]) -> Welcome:
    """`known`: the client has been here before; `failures`: how former cores ended."""
    facts = engine.facts
    return Welcome(
        epoch=engine.epoch,
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        block_size=engine.kv_cache.block_size,
        num_blocks=facts.num_blocks,
        max_num_seqs=engine.scheduler.max_num_rows,
        known=known,
        failures=failures,
        arithmetic=facts.arithmetic,
    )

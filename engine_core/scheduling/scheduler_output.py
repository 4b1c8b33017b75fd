"""Turns a scheduled step into the message that the workers need: only what changed since the step before."""

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput

from ..requests.request import Sequence
from .scheduled_step import ScheduledStep

MAX_CARRIED_BYTES = 1 << 20  # of rows admitted in one step, except the last: decoding them delays all other rows


def carried_bytes(sequence: Sequence) -> int:
    """Bytes of tokens and parameters in the message, if it admits `sequence`."""
    return sequence.prefill_len * TOKEN_BYTES + sequence.request.params_bytes


def plan_message(plan: ScheduledStep, epoch: int) -> SchedulerOutput:
    """The message of `plan`. Must be called before the next step is scheduled: it reads the current state."""
    return SchedulerOutput(
        epoch=epoch,
        step=plan.step,
        new_rows=tuple(map(_new_row, plan.admitted)),
        copied_blocks=pack_ids(plan.copies),
        extended_tables=pack_ids(plan.extended_tables),
        extended_block_ids=pack_ids(plan.new_blocks),
        decode_leaves=pack_ids(plan.leaves),
        decode_joins=pack_ids(plan.joins),
        chunks=(
            *[Chunk(chunk.row, chunk.end - chunk.start) for chunk in plan.chunks],
            *[Chunk(each.row, 1, each.num_drafts) for each in plan.verifications],
        ),
    )


def _new_row(sequence: Sequence) -> NewRow:
    request = sequence.request
    return NewRow(
        row=sequence.row,
        token_ids=sequence.token_bytes(0, sequence.num_tokens),
        prompt_len=request.prompt_len,
        num_computed_tokens=sequence.num_applied,  # shared tokens; it has computed none itself yet
        block_tables=tuple(map(pack_ids, sequence.block_tables)),
        seed=sequence.seed,
        eos_token_ids=tuple(sorted(sequence.eos_ids)),
        sampling_params=request.params,
        pooling_params=request.pooling,
        adapter=request.place,
        history=b"" if request.pooling else request.chain_root,  # answers are kept apart like prefixes
    )

"""Appends the sampled tokens of a step to their sequences, and finds the sequences that end."""

from array import array
from itertools import chain

from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.engine_core import Logprobs
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.worker import ModelRunnerOutput, RowFailure

from ..kv.kv_cache import KVCache
from ..requests.request import Sequence
from ..requests.stopping import finish_reason
from ..scheduling.decode_set import DecodeSet
from ..scheduling.scheduled_step import ScheduledChunk, ScheduledStep
from .results import StepResults
from .verifications import Run, append_run, check_ends, match_runs, token_owners


def apply_results(plan: ScheduledStep, output: ModelRunnerOutput, kv_cache: KVCache) -> StepResults:
    """Append every wanted token to its sequence.

    Raises ProtocolError, and changes nothing, when the answer does not fit the plan.
    """
    tokens, bad = unpack_ids(output.token_ids), set(unpack_ids(output.nan_indices))  # bad: not finite
    failures = {failure.index: failure for failure in output.failures}
    num_decode = len(plan.decode)
    sampling = [chunk for chunk in plan.chunks if chunk.samples]
    num_tokens, runs = num_decode + len(sampling), list[Run]()
    if plan.verifications or output.num_drafted:
        runs, num_tokens = match_runs(plan, output, num_tokens)
    if len(tokens) != num_tokens:
        raise ProtocolError(f"step {plan.step} returned {len(tokens)} tokens instead of {num_tokens}")
    if not all(0 <= index < len(tokens) for index in (*bad, *failures, *(entry.index for entry in output.logprobs))):
        raise ProtocolError(f"step {plan.step} refers to tokens that it did not return")
    if runs:
        check_ends(plan, runs, bad | failures.keys())
    pooling = _match_pooled(plan, output)

    results = _apply_decode(plan, tokens, bad, failures, kv_cache)
    _apply_prompt_logprobs(plan, output)
    for index, chunk in enumerate(sampling, start=num_decode):
        _apply_chunk(chunk, tokens[index], results, kv_cache, is_bad=index in bad, failure=failures.get(index))
    for run in runs:
        _apply_run(run, tokens, bad, failures, results, kv_cache)
    if pooling:
        _apply_pooled(pooling, results, kv_cache)
    for chunk in plan.chunks:
        if not chunk.discarded:
            chunk.sequence.num_applied = chunk.end
            kv_cache.prefix_cache.publish(chunk.sequence, chunk.end)
    if output.logprobs:
        owners = [*plan.decode.sequences, *(chunk.sequence for chunk in sampling), *token_owners(runs)]
        _apply_logprobs(output, owners, results)
    return results


def _apply_chunk(
    chunk: ScheduledChunk,
    token: int,
    results: StepResults,
    kv_cache: KVCache,
    *,
    is_bad: bool,
    failure: RowFailure | None,
) -> None:
    """The first token of a prompt, or the next of a sequence that was computed again."""
    if chunk.discarded:
        if is_bad:
            kv_cache.prefix_cache.invalidate_hashes(chunk.sequence)
    elif is_bad:
        results.not_finite.append(chunk.sequence)  # the caller strikes its blocks from the cache
    elif failure is not None:
        results.failed[chunk.sequence] = failure
    else:
        chunk.sequence.output.append(token)
        results.detailed[chunk.sequence] = 1
        if (reason := finish_reason(chunk.sequence)) is not None:
            results.ended[chunk.sequence] = reason


def _apply_run(
    run: Run,
    tokens: "array[int]",
    bad: set[int],
    failures: dict[int, RowFailure],
    results: StepResults,
    kv_cache: KVCache,
) -> None:
    verification, sequence, last = run.verification, run.verification.sequence, run.end - 1
    verification.num_drafted, verification.num_sampled = run.num_drafted, run.end - run.start
    if verification.discarded:
        if last in bad:
            kv_cache.prefix_cache.invalidate_hashes(sequence)
        return
    reason = append_run(run, tokens, is_whole=last not in bad and last not in failures)
    if verification.num_applied:
        results.detailed[sequence] = verification.num_applied
    if reason is not None:
        results.ended[sequence] = reason
        if last in bad:  # behind its end; a block that holds tokens before it may also hold the cause
            kv_cache.invalidate(sequence)
            sequence.num_nans += 1
    elif last in bad:
        results.not_finite.append(sequence)
    elif last in failures:
        results.failed[sequence] = failures[last]


def _apply_logprobs(output: ModelRunnerOutput, owners: list[Sequence | None], results: StepResults) -> None:
    """`owners`: the sequence of each token; None if the token was dropped."""
    for entry in output.logprobs:
        sequence = owners[entry.index]
        if sequence is None:
            continue
        row, before = (entry.token_ids, entry.logprobs, pack_ids((entry.rank,))), results.logprobs.get(sequence)
        if before is not None:
            row = before.token_ids + row[0], before.logprobs + row[1], before.ranks + row[2]
        results.logprobs[sequence] = Logprobs(*row)


def _apply_decode(
    plan: ScheduledStep, tokens: "array[int]", bad: set[int], failures: dict[int, RowFailure], kv_cache: KVCache
) -> StepResults:
    """The steady path: Python visits a row only if it ends or has logprobs; `append` does the rest.

    `tokens`, `bad` and `failures` are those of the whole step, of which the first are decoded.
    """
    decode, tokens = plan.decode, tokens[: len(plan.decode)]
    bad = {index for index in bad if index < len(decode)}
    failures = {index: failure for index, failure in failures.items() if index < len(decode)}
    for row in bad & plan.discarded:  # aborted or preempted meanwhile; its blocks may have other owners
        kv_cache.prefix_cache.invalidate_hashes(decode.sequences[row])
    not_finite = [decode.sequences[index] for index in bad - plan.discarded]
    failed = {decode.sequences[index]: failure for index, failure in failures.items() if index not in plan.discarded}
    decode, tokens = _without(decode, tokens, plan.discarded | bad | failures.keys())
    for append, token in zip(decode.appends, tokens, strict=True):
        append(token)
    ended = _ended(plan, decode, tokens)
    detailed = dict.fromkeys(ended, 1)
    if sum(decode.num_plain.values()) < len(decode):
        detailed |= {sequence: 1 for sequence in decode.sequences if not sequence.plain}
    plain, tokens = _without(decode, tokens, {index for s in ended if (index := decode.index(s)) is not None})
    return StepResults(plain, tokens, detailed, ended, {}, not_finite, failed)


def _apply_pooled(pooling: list[tuple[ScheduledChunk, Pooled | None]], results: StepResults, kv_cache: KVCache) -> None:
    """End each sequence that has its vector; without one, the sequence's blocks may hold non-finite values."""
    for chunk, pooled in pooling:
        if chunk.discarded:
            if pooled is None:
                kv_cache.prefix_cache.invalidate_hashes(chunk.sequence)
        elif pooled is None:
            results.not_finite.append(chunk.sequence)  # the caller strikes its blocks from the cache
        else:
            results.pooled[chunk.sequence] = pooled
            results.ended[chunk.sequence] = FinishReason.STOP


def _match_pooled(plan: ScheduledStep, output: ModelRunnerOutput) -> list[tuple[ScheduledChunk, Pooled | None]]:
    """Pair each chunk that ends with a vector with that vector. Raises ProtocolError if one is missing."""
    if not (plan.chunks or output.pooled):
        return []
    pooling = [chunk for chunk in plan.chunks if chunk.pools]
    if [chunk.row for chunk in pooling] != (rows := [entry.row for entry in output.pooled]):
        raise ProtocolError(f"step {plan.step} pooled rows {rows} instead of {[chunk.row for chunk in pooling]}")
    return [(chunk, entry.pooled) for chunk, entry in zip(pooling, output.pooled, strict=True)]


def _without(decode: DecodeSet, tokens: "array[int]", indices: set[int]) -> tuple[DecodeSet, "array[int]"]:
    if not indices:
        return decode, tokens
    tokens = tokens[:]
    for index in sorted(indices, reverse=True):
        del tokens[index]
    return decode.without(indices), tokens


def _ended(plan: ScheduledStep, decode: DecodeSet, tokens: "array[int]") -> dict[Sequence, FinishReason]:
    """The sequences of `decode` that end with the token just appended."""
    candidates = [sequence for sequence in plan.last if decode.index(sequence) is not None]
    if not decode.stop_ids.isdisjoint(tokens):
        stop_ids = decode.stop_ids
        stopped = (decode.sequences[index] for index, token in enumerate(tokens) if token in stop_ids)
        candidates = list(chain(stopped, candidates))
    if sum(decode.num_plain.values()) < len(decode):
        candidates += [each for each in decode.sequences if each.request.params.repetition_detection is not None]
    reasons = {sequence: finish_reason(sequence) for sequence in candidates}
    return {sequence: reason for sequence, reason in reasons.items() if reason is not None}


def _apply_prompt_logprobs(plan: ScheduledStep, output: ModelRunnerOutput) -> None:
    """Taken even from a discarded chunk: the values are valid, and a sibling may need them."""
    for part in output.prompt_logprobs:
        for chunk in plan.chunks:
            if chunk.row == part.row:
                request = chunk.sequence.request
                request.prompt_logprobs.add(part, request.prompt_len)

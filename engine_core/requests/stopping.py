"""Decides when a sequence ends: EOS, stop tokens and length. The frontend handles stop strings."""

from paged_serve.protocol.messages.samplers import RepetitionDetection
from paged_serve.protocol.messages.sampling_params import FinishReason

from .request import Sequence


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Why `sequence` ends with the last token of its output, or None if it continues."""
    output = sequence.output
    if output and output[-1] in sequence.stop_ids and len(output) > sequence.request.params.min_tokens:
        return FinishReason.STOP
    if sequence.num_tokens >= sequence.token_limit:
        return FinishReason.LENGTH
    params = sequence.request.params
    if params.repetition_detection is not None and len(output) >= params.min_tokens:
        return FinishReason.REPETITION if repeats(output, params.repetition_detection) else None
    return None


def repeats(output: list[int], detection: RepetitionDetection) -> bool:
    """Whether the last tokens are repetitions of one pattern."""
    count, length = detection.min_count, len(output)
    longest = min(detection.max_pattern_size, length // count)
    return any(
        output[-1] == output[-1 - size]  # most sizes are ruled out by it
        and output[-size * (count - 1) :] == output[-size * count : -size]
        for size in range(max(detection.min_pattern_size, 1), longest + 1)
    )


def stop_token_id(sequence: Sequence) -> int | None:
    """The stop_token_ids entry that ended the output; None if EOS or something else did."""
    token = sequence.output[-1] if sequence.output else None
    return token if token in sequence.request.params.stop_token_ids and token not in sequence.eos_ids else None

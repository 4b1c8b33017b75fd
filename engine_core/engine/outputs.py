"""Builds the outputs of a stream that are more than one plain token: with details, or with an end."""

from msgspec.structs import replace

from paged_serve.protocol.messages.engine_core import EngineCoreOutput, EngineCoreOutputs, RequestRejected
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..requests.request import Request, Sequence
from ..requests.stopping import stop_token_id
from .results import StepResults

StreamOutput = tuple[Sequence, EngineCoreOutput]
Outgoing = list[tuple[bytes, EngineCoreOutputs | RequestRejected]]  # by client, in the order to send


def step_outputs(results: StepResults, now: float) -> dict[bytes, list[StreamOutput]]:
    """By client: the outputs of sequences with more than one plain token, or with a vector."""
    outputs: dict[bytes, list[StreamOutput]] = {}
    for sequence, num_tokens in results.detailed.items():
        request, output = sequence.request, sequence.output
        is_first = sequence.first_token_s is None
        if is_first:
            sequence.first_token_s = now
        reason = results.ended.get(sequence)
        has_prompt_logprobs = is_first and request.params.prompt_logprobs is not None
        message = EngineCoreOutput(
            stream_id=sequence.stream_id,
            position=len(output) - num_tokens,
            token_ids=pack_ids(output[-num_tokens:]),
            finish_reason=reason,
            stop_token_id=stop_token_id(sequence) if reason is FinishReason.STOP else None,
            logprobs=results.logprobs.get(sequence) if request.params.logprobs is not None else None,
            prompt_logprobs=request.prompt_logprobs.result() if has_prompt_logprobs else None,
            num_cached_tokens=sequence.num_cached_tokens if is_first else 0,
            times=sequence.times(now) if reason is not None else None,
        )
        outputs.setdefault(request.client, []).append((sequence, message))
    for sequence, pooled in results.pooled.items():
        sequence.first_token_s = now
        message = EngineCoreOutput(
            stream_id=sequence.stream_id,
            position=0,
            token_ids=b"",
            finish_reason=FinishReason.STOP,
            num_cached_tokens=sequence.num_cached_tokens,
            times=sequence.times(now),
            pooled=pooled,
        )
        outputs.setdefault(sequence.request.client, []).append((sequence, message))
    return outputs


def add_ending(outputs: list[StreamOutput], sequence: Sequence, end: EngineCoreOutput) -> None:
    """Add an end without a new token to a step's outputs; if that step also gave the sequence tokens, to these."""
    for index, (each, output) in enumerate(outputs):
        if each is sequence:
            whole = replace(output, finish_reason=end.finish_reason, times=end.times, error=end.error, param=end.param)
            outputs[index] = sequence, whole
            return
    outputs.append((sequence, end))


def ending(sequence: Sequence, reason: FinishReason, now: float, error: str = "", param: str = "") -> EngineCoreOutput:
    """The output of an end without a new token."""
    return EngineCoreOutput(
        sequence.stream_id,
        position=len(sequence.output),
        token_ids=b"",
        finish_reason=reason,
        stop_token_id=stop_token_id(sequence) if reason is FinishReason.STOP else None,
        times=sequence.times(now),
        error=error,
        param=param,
    )


def reused_outputs(request: Request) -> list[StreamOutput]:
    """The outputs that a request, just accepted, starts with."""
    return [
        (sequence, EngineCoreOutput(sequence.stream_id, 0, pack_ids(sequence.output)))
        for sequence in request.sequences
        if sequence.output
    ]

"""When a sequence ends. Stop strings are the frontend's; here are EOS, stop tokens and length."""

from paged_serve.protocol.messages.sampling_params import FinishReason

from .request import Sequence


def finish_reason(sequence: Sequence) -> FinishReason | None:
    """Why `sequence` ends with the last token of its output, or None when it goes on."""
    output = sequence.output
    if output and output[-1] in sequence.stop_ids and len(output) > sequence.request.params.min_tokens:
        return FinishReason.STOP
    if sequence.num_tokens >= sequence.token_limit:
        return FinishReason.LENGTH
    return None


def stop_token_id(sequence: Sequence) -> int | None:
    """The stop_token_ids entry that stands last in the output; None when EOS or something else ended it."""
    token = sequence.output[-1] if sequence.output else None
    return token if token in sequence.request.params.stop_token_ids and token not in sequence.eos_ids else None

"""The memory of the parts of a request: upper bounds in bytes, for the lease taken beforehand."""

from paged_serve.protocol.messages.sampling_params import SamplingParams

DECODED_PER_BYTE = 10  # of a body as JSON: integers beyond 256, of four characters each, become objects in a list
REQUEST_BYTES = 16 << 10  # tasks, generators, tables of any request
SEQUENCE_BYTES = 6 << 10  # of each choice, here and in the client
PROMPT_TOKEN_BYTES = 12  # packed: here, in the client, in transit
SHOWN_TOKEN_BYTES = 60  # of a prompt repeated in the answer: as text, as number, in JSON
OUTPUT_TOKEN_BYTES = 120  # with its text or number, also in JSON
JOURNAL_TOKEN_BYTES = 8  # of an output that has been sent, for a restart of the engine
LOGPROB_BYTES = 400  # of one log-probability with its token's text, also in JSON
GRAMMAR_CHAR_BYTES = 8  # here, and encoded in transit
NAMED_TOKEN_BYTES = 80  # of a logit bias, an allowed token, a token of a bad word


def output_token_bytes(params: SamplingParams) -> int:
    """Bytes of one token of an answer."""
    return OUTPUT_TOKEN_BYTES + (0 if params.logprobs is None else LOGPROB_BYTES * (1 + params.logprobs))


def prompt_bytes(num_tokens: int, params: SamplingParams, *, is_shown: bool) -> int:
    """Bytes of all copies of a prompt and its parameters; `is_shown`: the answer repeats it for each choice."""
    named = len(params.allowed_token_ids or ()) + len(params.logit_bias or ())
    named += sum(map(len, params.bad_words_token_ids)) + len(params.stop_token_ids)
    named += 0 if params.dry is None else len(params.dry.breaker_token_ids)
    size = params.n * SEQUENCE_BYTES + num_tokens * PROMPT_TOKEN_BYTES + named * NAMED_TOKEN_BYTES
    if params.grammar is not None:
        size += len(params.grammar.source) * GRAMMAR_CHAR_BYTES
    if is_shown:
        size += num_tokens * SHOWN_TOKEN_BYTES * params.n
    if params.prompt_logprobs is not None:
        size += num_tokens * LOGPROB_BYTES * (1 + params.prompt_logprobs) * params.n
    return size


def least_output_tokens(params: SamplingParams) -> int:
    """The minimum number of output tokens of each sequence."""
    ends_by_itself = not params.ignore_eos or params.stop or params.stop_token_ids
    return params.min_tokens if ends_by_itself or params.max_tokens is None else params.max_tokens

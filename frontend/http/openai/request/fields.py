"""Bounds of single request fields, shared by the schemas; the numbers are those of SamplingParams."""

from typing import Annotated

from msgspec import Meta

from paged_serve.protocol.messages import samplers
from paged_serve.protocol.messages.message import MAX_TOKEN_ID, TokenId
from paged_serve.protocol.messages.sampling_params import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_TOKENS,
    MIN_SEED,
)

from ....text.beam_search import MAX_LENGTH_PENALTY

MAX_PROMPTS = 256
MAX_STOP_TOKENS = 1024

N = Annotated[int, Meta(ge=1, le=MAX_N, description="Sequences from one prompt; at temperature 0 all are equal")]
BestOf = Annotated[int, Meta(ge=1, le=MAX_N, description="Sequences generated, at least n")]
LengthPenalty = Annotated[
    float,
    Meta(
        ge=-MAX_LENGTH_PENALTY,
        le=MAX_LENGTH_PENALTY,
        description="A beam's score is its log-probability divided by length to this power",
    ),
]
Temperature = Annotated[float, Meta(ge=0, le=2, description="0 is greedy")]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID, description="0 or -1 is off")]
XtcProbability = Annotated[float, Meta(ge=0, le=1, description="Probability that a step excludes top choices. 0: off")]
XtcThreshold = Annotated[float, Meta(ge=0, le=1, description="Probability from which a token is a top choice")]
DryMultiplier = Annotated[
    float, Meta(ge=0, le=samplers.MAX_MULTIPLIER, description="Penalty of a token that repeats the text. 0: off")
]
DryBase = Annotated[float, Meta(ge=1, le=samplers.MAX_BASE, description="Growth of the penalty per repeated token")]
DryAllowedLength = Annotated[int, Meta(ge=1, le=samplers.MAX_MATCH, description="Repeated tokens without a penalty")]
DryPenaltyLastN = Annotated[
    int, Meta(ge=-1, le=samplers.MAX_LAST_N, description="Tokens searched for repetitions; -1: all")
]
Breaker = Annotated[str, Meta(min_length=1, max_length=samplers.MAX_BREAKER_CHARS)]
DrySequenceBreakers = Annotated[
    list[Breaker], Meta(max_length=samplers.MAX_BREAKERS, description="Texts that end a repetition")
]
MinP = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=100)]
Seed = Annotated[int, Meta(ge=MIN_SEED, le=MAX_SEED, description="-1: no seed")]
MaxTokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
MaxTokensOrNone = Annotated[int, Meta(ge=0, le=MAX_TOKENS, description="0 is allowed only with echo")]
ThinkingTokenBudget = Annotated[
    int, Meta(ge=-1, le=MAX_TOKENS, description="Maximum number of reasoning tokens. -1: unlimited")
]
MinTokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
TopLogprobs = Annotated[
    int, Meta(ge=-1, le=1024, description="-1: the whole vocabulary. The server may allow fewer (--max-logprobs)")
]
TruncatePromptTokens = Annotated[int, Meta(ge=-1, le=MAX_TOKENS, description="-1: as many as fit")]
Bias = Annotated[float, Meta(ge=-100, le=100)]
LogitBias = Annotated[dict[int, Bias], Meta(max_length=MAX_LOGIT_BIAS)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_CHARS)]
StopStringList = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)]
BadWords = Annotated[list[StopString], Meta(max_length=MAX_BAD_WORDS)]
AllowedTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)]
LogprobTokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_TOKEN_IDS)]
Priority = Annotated[
    int, Meta(ge=-(2**31), le=2**31 - 1, description="Lower runs first, with --scheduling-policy priority")
]
CacheSalt = Annotated[str, Meta(max_length=128, description="Prefixes are shared only under an equal salt")]
RequestId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}(?!\n)$")]  # "$" alone would allow a line feed
StreamInterval = Annotated[
    int, Meta(ge=1, le=1024, description="Tokens per event of a stream; the first and the last are sent at once")
]
Timeout = Annotated[
    float, Meta(gt=0, le=86400, description="Seconds to wait for the first token; then the answer is 504")
]

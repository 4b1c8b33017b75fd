"""Log-probabilities in the forms of OpenAI's completions and of vLLM's prompt_logprobs."""

import codecs
import functools
from collections.abc import Sequence

from ...client.streams.deltas import TokenLogprobs
from ...text.detokenizer import Detokenizer
from ...text.tokenizer import Tokenizer
from ..service import Service
from .answers import ChatLogprob, ChatLogprobs, CompletionLogprobs, PromptLogprob, PromptLogprobs, TopLogprob

UTF8_CONTINUATION = range(0x80, 0xC0)  # bytes within a character
LOWEST = -9999.0  # JSON has no infinity


def id_name(token_id: int) -> str:
    """The name of a token under return_tokens_as_token_ids."""
    return f"token_id:{token_id}"


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token. Bytes that are not text become bytes:\\x.., so that names in one dict do not collide."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionLogprobsWriter:
    """Builds the logprobs of a completion, with text offsets. The tokens of one character have equal offsets."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, text: Detokenizer, names_ids: bool = False):
        self.offset = 0
        self._num_top = num_top
        self._text = text
        self._bytes_of = tokenizer.token_bytes
        self._name = id_name if names_ids else functools.partial(token_name, tokenizer)

    def write(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """`logprobs` has one entry per token; None for the first token of a prompt."""
        answer = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        for token, entry in zip(token_ids, logprobs, strict=True):
            text = self._text.push(token)
            answer.text_offset.append(self.offset + self._num_replaced(token, text))
            answer.tokens.append(self._name(token))
            self.offset += len(text)
            answer.token_logprobs.append(None if entry is None else max(entry.logprobs[0], LOWEST))
            answer.top_logprobs.append(None if entry is None else self._top(entry))
        return answer

    def _num_replaced(self, token: int, text: str) -> int:
        """The characters of `text`, which the token completes, that replace bytes of earlier tokens: a half character
        shows as U+FFFD only when the next one begins."""
        if not text.startswith("\ufffd") or (raw := self._bytes_of(token))[0] in UTF8_CONTINUATION:
            return 0
        return len(text) - len(codecs.getincrementaldecoder("utf-8")("replace").decode(raw))

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        ids, values = entry.token_ids, entry.logprobs
        ranked = [*zip(ids[1:], values[1:], strict=True)][: self._num_top]
        if self._num_top and ids[0] not in ids[1:]:
            ranked.append((ids[0], values[0]))
        return {self._name(token): max(value, LOWEST) for token, value in ranked}


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    names = CompletionLogprobs.__struct_fields__
    return CompletionLogprobs(**{name: getattr(first, name) + getattr(second, name) for name in names})


def chat_logprobs(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs], num_top: int, names_ids: bool = False
) -> ChatLogprobs:
    name = id_name if names_ids else tokenizer.token_text
    content = []
    for entry in logprobs:
        sampled, *top = (
            TopLogprob(token=name(token), logprob=max(value, LOWEST), bytes=[*tokenizer.token_bytes(token)])
            for token, value in zip(entry.token_ids, entry.logprobs, strict=True)
        )
        content.append(
            ChatLogprob(token=sampled.token, logprob=sampled.logprob, bytes=sampled.bytes, top_logprobs=top[:num_top])
        )
    return ChatLogprobs(content=content)


async def prompt_logprobs(
    service: Service, logprobs: Sequence[TokenLogprobs] | None, num_top: int | None
) -> PromptLogprobs | None:
    """Those of the engine in the answer's form; None if the request has not asked for any."""
    if logprobs is None or num_top is None:
        return None
    size = len(logprobs) * (1 + num_top)
    return await service.off_loop(size, _prompt_logprobs, service.tokenizer, logprobs, num_top)


def _prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs], num_top: int) -> PromptLogprobs:
    """One entry per prompt token, a dict by token id; None for the first token. An echo may need more top tokens."""
    answer: PromptLogprobs = [None]
    for entry in logprobs:
        ranks = [entry.rank, *range(1, len(entry.token_ids))]
        found: dict[int, PromptLogprob] = {}
        for token, value, rank in [*zip(entry.token_ids, entry.logprobs, ranks, strict=True)][: 1 + num_top]:
            known = PromptLogprob(logprob=max(value, LOWEST), rank=rank, decoded_token=tokenizer.token_text(token))
            found.setdefault(token, known)
        answer.append(found)
    return answer

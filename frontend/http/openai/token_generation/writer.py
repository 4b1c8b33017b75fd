"""Writes answers of /inference/v1/generate: tokens and their logprobs, without text."""

from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from ....client.streams.deltas import TokenLogprobs
from ...exchange.sse import AnswerHead, Frames
from ...service import Service
from .. import logprobs
from ..answers import Answer, ChatLogprobs, PromptLogprobs, Usage
from ..generation import Generation, Prompt
from ..pieces import Piece
from ..request.schemas import without_prompt
from ..streaming.frames import Extras, framed, warnings_of
from .request import FlatTokensRequest


class TokensChoice(Answer):
    index: int
    token_ids: list[int]
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class TokensAnswer(Answer):
    id: str
    request_id: str  # equal to id
    object: Literal["generate"]
    created: int
    model: str
    choices: list[TokensChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None
    system_fingerprint: str
    warnings: list[str] | UnsetType = UNSET


class TokensWriter:
    """Turns the pieces of all choices into one answer or into frames."""

    def __init__(self, service: Service, body: FlatTokensRequest, prompts: list[Prompt], generation: Generation):
        self._service = service
        self._body = without_prompt(body)
        self._n = prompts[0].params.n
        self._generation = generation

    async def answer(self, head: AnswerHead) -> TokensAnswer:
        """The whole answer."""
        choices = [TokensChoice(index=index, token_ids=[]) for index in range(self._n)]
        async for batch in self._generation.batches():
            for piece in batch:
                _append(choices[piece.choice], self._choice(piece))
        entries = self._generation.prompt_logprobs[0]
        return TokensAnswer(
            id=head.answer_id,
            request_id=head.answer_id,
            object="generate",
            created=head.created,
            model=head.model,
            choices=choices,
            usage=self._generation.usage(),
            prompt_logprobs=await logprobs.prompt_logprobs(self._service, entries, self._body.prompt_logprobs),
            system_fingerprint=self._generation.fingerprint,
            warnings=head.warnings or UNSET,
        )

    def frames(self, head: AnswerHead) -> AsyncGenerator[list[bytes], None]:
        """The answer as server-sent events, in lists of those available at a time."""

        async def chunks(piece: Piece) -> list[TokensChoice]:
            return [self._choice(piece)] if piece.token_ids or piece.finish_reason is not None else []

        generation = self._generation
        extras = Extras(self._body.stream_options, generation.usage, request_id=head.answer_id)
        frames = Frames(head, "generate.chunk")
        return framed(frames, generation.batches(), chunks, first=warnings_of(head), extras=extras)

    def _choice(self, piece: Piece) -> TokensChoice:
        reason = None if piece.finish_reason is None else piece.finish_reason.api_name
        shown = self._logprobs(piece.logprobs)
        return TokensChoice(
            index=piece.choice,
            token_ids=piece.token_ids,
            logprobs=shown,
            finish_reason=reason,
            stop_reason=piece.stop_reason,
        )

    def _logprobs(self, entries: Sequence[TokenLogprobs] | None) -> ChatLogprobs | None:
        if self._body.logprobs is None or not entries:
            return None
        return logprobs.chat_logprobs(self._service.tokenizer, entries, self._body.logprobs, names_ids=True)


def _append(whole: TokensChoice, part: TokensChoice) -> None:
    whole.token_ids.extend(part.token_ids)
    if part.finish_reason is not None:
        whole.finish_reason, whole.stop_reason = part.finish_reason, part.stop_reason
    if part.logprobs is not None:
        whole.logprobs = whole.logprobs or ChatLogprobs(content=[])
        whole.logprobs.content.extend(part.logprobs.content)

"""Scores pairs of texts: with a cross-encoder, or by the similarity of their embeddings."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.pooling_params import PoolingParams

from ....pooling.similarity import cosine, numbers
from ....pooling.texts import Limit
from ....text.off_loop import LONG
from ...exchange.errors import HttpError
from ...service import Service
from .encoding import VectorEncoder
from .inputs import collected, limit_of, params_of, text_prompts
from .schemas import PoolingFields, RerankRequest, ScoreRequest, Texts
from .work import PoolingPrompt, PoolingWork


def reads_pairs(service: Service) -> bool:
    """Whether the model is a cross-encoder. Raises HttpError 400 if it can give no score at all."""
    limits = service.engine.limits
    if "embed" in limits.tasks:
        return False
    if "classify" in limits.tasks and limits.num_labels == 1:
        return True
    raise HttpError(
        400,
        f"{service.model_names[0]} has {limits.num_labels} classes; a score needs a model with one class or an "
        "embedding model: use /classify.",
        "model",
    )


@dataclass(frozen=True, slots=True)
class Pairs:
    """Each text of `first` with that of `second` at the same index; a single first text with every second text."""

    first: list[str]
    second: list[str]
    first_field: str
    second_field: str
    kept: int | None = None  # tokens that each text of `second` is cut to; None: not cut

    async def prompts(self, service: Service, body: PoolingFields) -> list[PoolingPrompt]:
        """Raises InvalidRequest."""
        if len(self.first) not in (1, len(self.second)):
            raise InvalidRequest(
                f"{self.first_field} has {len(self.first)} texts and {self.second_field} {len(self.second)}; send one "
                f"text in {self.first_field}, or equal numbers",
                self.first_field,
            )
        limit = limit_of(service, body)
        if reads_pairs(service):
            return await self._pair_prompts(service, body, limit)
        params, prefix = params_of(body, "embed"), service.pooling.files.default_prompt
        params = msgspec.structs.replace(params, use_activation=True)  # a cosine ignores their lengths
        first = await text_prompts(service, self.first, limit, params, self.first_field, prefix)
        return first + await text_prompts(
            service, self.second, limit, params, self.second_field, prefix, kept=self.kept
        )

    async def _pair_prompts(self, service: Service, body: PoolingFields, limit: Limit) -> list[PoolingPrompt]:
        params, texts = params_of(body, "classify"), service.pooling
        for field, given in ((self.first_field, self.first), (self.second_field, self.second)):
            for text in given:
                limit.check_text(text, service.longest_token_chars, field)

        def encode() -> Iterator[tuple[list[int], PoolingParams]]:
            first = [texts.part(text, limit, self.first_field) for text in self.first]
            for number, text in enumerate(self.second):
                second = texts.part(text, limit, self.second_field)[: self.kept]
                pair = first[number if len(first) > 1 else 0], second
                ids, begins = texts.pair(*pair, limit, self.second_field)
                yield ids, msgspec.structs.replace(params, second_text=begins)

        given = [*self.first, *self.second]
        size = sum(map(len, given)) + len(self.first[0]) * len(self.second)
        return await collected(
            service, LONG if service.encoder.may_take_long(given) else size, encode, self.second_field
        )

    async def scores(self, service: Service, work: PoolingWork) -> list[float]:
        """One score per pair, from the vectors of `prompts`."""
        vectors, encoder = work.vectors(), VectorEncoder()
        if reads_pairs(service):
            return [numbers(pooled.values)[0] async for pooled in vectors]
        first = [(await anext(vectors)).values for _ in self.first]
        scores = list[float]()
        async for pooled in vectors:
            scores.append(cosine(first[len(scores) if len(first) > 1 else 0], pooled.values))
            await encoder.turn(4 * pooled.columns)
        return scores


def pairs_of(body: ScoreRequest | RerankRequest) -> Pairs:
    """Raises InvalidRequest."""
    if isinstance(body, RerankRequest):
        documents = [each if isinstance(each, str) else each.text for each in body.documents]
        return Pairs([body.query], documents, "query", "documents", body.max_tokens_per_doc)
    if (given := body.texts()) is None:
        raise InvalidRequest("send one pair of fields: text_1 and text_2, or queries and documents", "text_1")
    first_field, first, second_field, second = given
    return Pairs(_list(first), _list(second), first_field, second_field)


def _list(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts

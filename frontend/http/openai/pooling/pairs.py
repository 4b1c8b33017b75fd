"""Scores pairs of texts: with a cross-encoder, or by the similarity of their embeddings or those of their tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams

from ....pooling.similarity import ScoreType, cosine, max_sim, numbers, score_type
from ....pooling.texts import Limit, entry_names
from ....text.off_loop import LONG
from ...exchange.errors import HttpError
from ...service import Service
from .encoding import VectorEncoder
from .inputs import collected, limit_of, params_of, text_prompts
from .schemas import PoolingFields, RerankRequest, ScoreRequest, Texts
from .work import PoolingPrompt, PoolingWork

PRODUCTS_PER_CHARACTER = 3  # of late interaction, for `off_loop`: they take as long as a character to tokenize


def score_type_of(service: Service) -> ScoreType:
    """Raises HttpError 400 if the model can give no score at all."""
    if (found := score_type(service.engine.limits)) is not None:
        return found
    raise HttpError(
        400,
        f"{service.model_names[0]} has {service.engine.limits.num_labels} classes; a score needs a model with one "
        "class or an embedding model: use /classify.",
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
        kind = score_type_of(service)
        if kind == "cross-encoder":
            return await self._pair_prompts(service, body, limit)
        prefix = service.pooling.files.default_prompt
        params = params_of(body, "embed" if kind == "bi-encoder" else "token_embed")
        params = msgspec.structs.replace(params, use_activation=True)  # a cosine ignores their lengths
        first = await text_prompts(service, self.first, limit, params, self.first_field, prefix)
        return first + await text_prompts(
            service, self.second, limit, params, self.second_field, prefix, kept=self.kept
        )

    async def _pair_prompts(self, service: Service, body: PoolingFields, limit: Limit) -> list[PoolingPrompt]:
        params, texts = params_of(body, "classify"), service.pooling
        first_names = entry_names(self.first_field, len(self.first))
        second_names = entry_names(self.second_field, len(self.second))
        of_second = limit.shortened(self.kept)
        for names, given, most in ((first_names, self.first, limit), (second_names, self.second, of_second)):
            for name, text in zip(names, given, strict=True):
                most.check_text(text, service.longest_token_chars, name)

        def encode() -> Iterator[tuple[list[int], PoolingParams]]:
            first = [texts.part(text, limit, name) for name, text in zip(first_names, self.first, strict=True)]
            for number, (name, text) in enumerate(zip(second_names, self.second, strict=True)):
                second = of_second.cut(texts.part(text, of_second, name))
                ids, begins = texts.pair(first[number if len(first) > 1 else 0], second, limit, name)
                yield ids, msgspec.structs.replace(params, second_text=begins)

        given = [*self.first, *self.second]
        size = sum(map(len, given)) + len(self.first[0]) * len(self.second)
        return await collected(
            service, LONG if service.encoder.may_take_long(given) else size, encode, self.second_field
        )

    async def scores(self, service: Service, work: PoolingWork) -> list[float]:
        """One score per pair, from the vectors of `prompts`."""
        vectors, encoder, kind = work.vectors(), VectorEncoder(), score_type_of(service)
        if kind == "cross-encoder":
            return [numbers(pooled.values)[0] async for pooled in vectors]
        first = [await anext(vectors) for _ in self.first]
        scores = list[float]()
        async for pooled in vectors:
            query = first[len(scores) if len(first) > 1 else 0]
            if kind == "bi-encoder":
                scores.append(cosine(query.values, pooled.values))
                await encoder.turn(4 * pooled.columns)
            else:
                scores.append(await _max_sim(service, query, pooled))
        return scores


async def _max_sim(service: Service, query: Pooled, document: Pooled) -> float:
    products = query.rows * document.rows * query.columns
    return await service.off_loop(products // PRODUCTS_PER_CHARACTER, max_sim, query, document)


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

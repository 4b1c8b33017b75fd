"""Writers that turn vectors into response bodies, one per route."""

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from ....pooling.io_processors import output_of
from ....pooling.similarity import numbers
from ....text.off_loop import LONG
from ...exchange.sse import AnswerHead
from ...service import Service
from . import answers
from .encoding import VectorEncoder
from .pairs import pairs_of
from .schemas import CohereEmbedRequest, PoolingRequest, RerankRequest, VectorFields
from .work import PoolingPrompt, PoolingWork


@dataclass(slots=True)
class Writer:
    """Writes one answer, which is never a stream."""

    service: Service
    body: Any
    prompts: list[PoolingPrompt]
    work: PoolingWork

    def frames(self, head: AnswerHead) -> Any:
        raise AssertionError("a pooling answer is not a stream")

    def _head(self, head: AnswerHead) -> dict[str, Any]:
        return {
            "id": head.answer_id,
            "model": head.model,
            "usage": self.work.usage(),
            "warnings": head.warnings or UNSET,
        }

    def _list_head(self, head: AnswerHead) -> dict[str, Any]:
        return self._head(head) | {"object": "list", "created": head.created}


class EmbeddingWriter(Writer):
    async def answer(self, head: AnswerHead) -> answers.Embeddings:
        body: VectorFields = self.body
        encoder, data = VectorEncoder(as_base64=body.encoding_format == "base64"), list[answers.Embedding]()
        async for pooled in self.work.vectors():
            embedding = await encoder.encoded(pooled)
            data.append(answers.Embedding(index=len(data), object="embedding", embedding=embedding))
        return answers.Embeddings(**self._list_head(head), data=data)


class PoolingWriter(Writer):
    async def answer(self, head: AnswerHead) -> answers.PooledList | answers.ProcessedData:
        body: PoolingRequest = self.body
        if body.io_processor is not None:
            processor, vectors = self.service.io_processors[body.io_processor], self.work.vectors()
            found = await self.service.off_loop(LONG, output_of, processor, body.data, [each async for each in vectors])
            return answers.ProcessedData(**self._list_head(head), data=found)
        encoder, data = VectorEncoder(as_base64=body.encoding_format == "base64"), list[answers.PooledData]()
        in_rows = self.prompts[0].params.task.startswith("token_")
        async for pooled in self.work.vectors():
            encoded = await encoder.encoded(pooled, in_rows=in_rows)
            data.append(answers.PooledData(index=len(data), object="pooling", data=encoded))
        return answers.PooledList(**self._list_head(head), data=data)


class ClassificationWriter(Writer):
    async def answer(self, head: AnswerHead) -> answers.Classifications:
        encoder, data = VectorEncoder(), list[answers.Classification]()
        async for pooled in self.work.vectors():
            probs = numbers(pooled.values)
            label = self.service.pooling.files.label(max(range(len(probs)), key=probs.__getitem__))
            encoded = await encoder.encoded(pooled)
            one = answers.Classification(index=len(data), label=label, probs=encoded, num_classes=len(probs))
            data.append(one)
        return answers.Classifications(**self._list_head(head), data=data)


class ScoreWriter(Writer):
    async def answer(self, head: AnswerHead) -> answers.Scores:
        scores = await pairs_of(self.body).scores(self.service, self.work)
        data = [answers.Score(index=index, object="score", score=score) for index, score in enumerate(scores)]
        return answers.Scores(**self._list_head(head), data=data)


class RankWriter(Writer):
    async def answer(self, head: AnswerHead) -> answers.Ranking:
        body: RerankRequest = self.body
        pairs = pairs_of(body)
        scores = await pairs.scores(self.service, self.work)
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        shown = body.return_documents is not False
        results = [
            answers.Rank(
                index=index,
                relevance_score=scores[index],
                document=answers.RankedDocument(text=pairs.second[index]) if shown else UNSET,
            )
            for index in order[: body.top_n or None]
        ]
        return answers.Ranking(**self._head(head), results=results)


class CohereWriter(Writer):
    async def answer(self, head: AnswerHead) -> answers.CohereEmbeddings:
        body: CohereEmbedRequest = self.body
        kinds = body.embedding_types or ["float"]
        encoders = {kind: VectorEncoder(as_base64=kind == "base64") for kind in kinds}
        found: dict[str, list[Any]] = {kind: [] for kind in kinds}
        async for pooled in self.work.vectors():
            for kind, encoder in encoders.items():
                if kind in ("binary", "ubinary"):
                    found[kind].append(await encoder.signs(pooled, below_zero=kind == "binary"))
                else:
                    found[kind].append(await encoder.encoded(pooled))
        usage = self.work.usage()
        return answers.CohereEmbeddings(
            id=head.answer_id,
            embeddings=answers.CohereVectors(**found),
            texts=body.texts,
            meta=answers.CohereMeta(
                api_version=answers.CohereVersion(version="2"),
                billed_units=answers.CohereUnits(input_tokens=usage.prompt_tokens),
            ),
            response_type="embeddings_by_type",
            warnings=head.warnings or UNSET,
        )

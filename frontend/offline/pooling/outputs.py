"""The outputs of the pooling methods, with vLLM's names."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from paged_serve.protocol.messages.engine_core import RequestTimes
from paged_serve.protocol.messages.pooling_params import Pooled

from ...client.pooling import PoolingAnswer
from ...pooling.similarity import numbers
from .prompts import PoolingJob

Output = TypeVar("Output")


@dataclass(slots=True)
class PoolingOutput:
    """`data`: float32, of shape [tokens, columns] for a task whose name begins with token_, else [columns].

    It is a memoryview: use `data.tolist()`, `numpy.asarray(data)` or `torch.tensor(data.tolist())`.
    """

    data: "memoryview[float]"

    @classmethod
    def of(cls, pooled: Pooled, *, by_token: bool) -> "PoolingOutput":
        shape = (pooled.rows, pooled.columns) if by_token else (pooled.columns,)
        return cls(memoryview(pooled.values).cast("f", shape=shape))


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    @classmethod
    def of(cls, pooled: Pooled) -> "EmbeddingOutput":
        return cls([*numbers(pooled.values)])


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    @classmethod
    def of(cls, pooled: Pooled) -> "ClassificationOutput":
        return cls([*numbers(pooled.values)])


@dataclass(slots=True)
class ScoringOutput:
    score: float


@dataclass(slots=True)
class _RequestOutput(Generic[Output]):
    """One prompt and its output."""

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    finished: bool = True
    metrics: RequestTimes | None = None


class PoolingRequestOutput(_RequestOutput[PoolingOutput]):
    pass


class EmbeddingRequestOutput(_RequestOutput[EmbeddingOutput]):
    pass


class ClassificationRequestOutput(_RequestOutput[ClassificationOutput]):
    pass


class ScoringRequestOutput(_RequestOutput[ScoringOutput]):
    """For a score of two embeddings, `prompt_token_ids` holds the tokens of both texts."""


@dataclass(slots=True)
class Answered:
    """One prompt and its vector."""

    job: PoolingJob
    pooled: Pooled
    answer: PoolingAnswer

    def facts(self, number: int | str) -> dict[str, Any]:
        """The fields that all outputs share, apart from `outputs`."""
        return {
            "request_id": str(number),
            "prompt_token_ids": self.job.token_ids,
            "num_cached_tokens": self.answer.num_cached_tokens,
            "metrics": self.answer.times,
        }


def pooling_output(answered: Answered, number: int | str) -> PoolingRequestOutput:
    outputs = PoolingOutput.of(answered.pooled, by_token=answered.job.params.task.startswith("token_"))
    return PoolingRequestOutput(outputs=outputs, **answered.facts(number))

"""Response bodies of the pooling routes, in the form of OpenAI, vLLM, Jina and Cohere. UNSET fields are left out."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from ..answers import Answer

Numbers = list[float] | str  # a str is little-endian float32 in base64


class PoolingUsage(Answer):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: None


class _List(Answer, kw_only=True):
    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: PoolingUsage
    warnings: list[str] | UnsetType = UNSET


class Embedding(Answer):
    index: int
    object: Literal["embedding"]
    embedding: Numbers


class Embeddings(_List, kw_only=True):
    data: list[Embedding]


class PooledData(Answer):
    index: int
    object: Literal["pooling"]
    data: list[float | list[float]] | str  # one list per token for a task whose name begins with token_


class PooledList(_List, kw_only=True):
    data: list[PooledData]


class ProcessedData(_List, kw_only=True):
    data: Any  # an IO processor's answer


class Classification(Answer):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Classifications(_List, kw_only=True):
    data: list[Classification]


class Score(Answer):
    index: int
    object: Literal["score"]
    score: float


class Scores(_List, kw_only=True):
    data: list[Score]


class RankedDocument(Answer):
    text: str


class Rank(Answer):
    index: int  # in the request's list of documents
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(Answer):
    id: str
    model: str
    usage: PoolingUsage
    results: list[Rank]  # the most relevant first; equal scores in the request's order
    warnings: list[str] | UnsetType = UNSET


class CohereVectors(Answer):
    float: list[Numbers] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET  # signs, eight to a number from -128 to 127
    ubinary: list[list[int]] | UnsetType = UNSET  # the same from 0 to 255


class CohereVersion(Answer):
    version: Literal["2"]


class CohereUnits(Answer):
    input_tokens: int


class CohereMeta(Answer):
    api_version: CohereVersion
    billed_units: CohereUnits


class CohereEmbeddings(Answer):
    id: str
    embeddings: CohereVectors
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"]
    warnings: list[str] | UnsetType = UNSET

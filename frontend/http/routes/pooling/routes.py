"""The pooling routes, for the table of all routes."""

from functools import partial

from ...openai.endpoints import Endpoint
from ...openai.pooling import answers
from ...openai.pooling.endpoints import CLASSIFICATION, COHERE_EMBED, EMBEDDINGS, POOLING, RERANK, SCORE
from ..generate import create_answer
from ..route_spec import Kinds, RouteSpec, Tasks


def _pooling(path: str, endpoint: Endpoint, operation: str, summary: str, answer: Kinds, tasks: Tasks) -> RouteSpec:
    """A route whose answer is never streamed, and is computed once if the request has an idempotency key."""
    return RouteSpec(
        "POST",
        path,
        partial(create_answer, endpoint=endpoint),
        summary,
        (endpoint.body,),
        answer,
        headers=("Idempotency-Key",),
        statuses=(409, 410, 422),
        tasks=tasks,
        operation=operation,
    )


_SCORING: Tasks = ("embed", "token_embed", "classify")
_RANK = "Sort documents by how well they answer a query"

POOLING_ROUTES = (
    _pooling("/v1/embeddings", EMBEDDINGS, "create_embeddings", "Texts to vectors", (answers.Embeddings,), ("embed",)),
    _pooling(
        "/v2/embed",
        COHERE_EMBED,
        "embed_texts",
        "Texts to vectors, with Cohere's API",
        (answers.CohereEmbeddings,),
        ("embed",),
    ),
    _pooling(
        "/pooling",
        POOLING,
        "create_pooling",
        "Texts to vectors, one per text or one per token, by task",
        (answers.PooledList,),
        ("embed", "classify", "token_embed", "token_classify"),
    ),
    _pooling("/classify", CLASSIFICATION, "classify", "Texts to classes", (answers.Classifications,), ("classify",)),
    _pooling("/score", SCORE, "score", "Scores of pairs of texts", (answers.Scores,), _SCORING),
    _pooling("/v1/score", SCORE, "score_v1", "Scores of pairs of texts", (answers.Scores,), _SCORING),
    _pooling("/rerank", RERANK, "rerank", _RANK, (answers.Ranking,), _SCORING),
    _pooling("/v1/rerank", RERANK, "rerank_v1", f"{_RANK}, with Jina's API", (answers.Ranking,), _SCORING),
    _pooling("/v2/rerank", RERANK, "rerank_v2", f"{_RANK}, with Cohere's API", (answers.Ranking,), _SCORING),
)

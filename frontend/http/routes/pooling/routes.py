"""The pooling routes, for the table of all routes."""

from ...exchange.exchange import Exchange
from ...openai.pooling import answers, schemas
from ...openai.pooling.endpoints import CLASSIFICATION, COHERE_EMBED, EMBEDDINGS, POOLING, RERANK, SCORE
from ...service import Service
from ..generate import create_answer
from ..route_spec import Handler, Kinds, RouteSpec, Tasks


async def create_embeddings(service: Service, exchange: Exchange) -> None:
    """A vector for each input."""
    await create_answer(service, exchange, EMBEDDINGS)


async def create_pooling(service: Service, exchange: Exchange) -> None:
    """The vector or vectors of each input, by task."""
    await create_answer(service, exchange, POOLING)


async def classify(service: Service, exchange: Exchange) -> None:
    """The probability of each class, for each input."""
    await create_answer(service, exchange, CLASSIFICATION)


async def score(service: Service, exchange: Exchange) -> None:
    """How well each second text matches the first."""
    await create_answer(service, exchange, SCORE)


async def rerank(service: Service, exchange: Exchange) -> None:
    """Sort documents by how well they answer a query."""
    await create_answer(service, exchange, RERANK)


async def score_v1(service: Service, exchange: Exchange) -> None:
    """As `score`; each path of the OpenAPI document has its own operation."""
    await score(service, exchange)


async def rerank_v1(service: Service, exchange: Exchange) -> None:
    """As `rerank`, at Jina's path."""
    await rerank(service, exchange)


async def rerank_v2(service: Service, exchange: Exchange) -> None:
    """As `rerank`, at Cohere's path."""
    await rerank(service, exchange)


async def embed_texts(service: Service, exchange: Exchange) -> None:
    """A vector for each text, with Cohere's body."""
    await create_answer(service, exchange, COHERE_EMBED)


def _pooling(path: str, handler: Handler, summary: str, body: Kinds, answer: Kinds, tasks: Tasks) -> RouteSpec:
    """A route whose answer is never streamed, and is computed once if the request has an idempotency key."""
    return RouteSpec(
        "POST",
        path,
        handler,
        summary,
        body,
        answer,
        headers=("Idempotency-Key",),
        statuses=(409, 410, 422),
        tasks=tasks,
    )


_SCORING: Tasks = ("embed", "token_embed", "classify")
_SCORE, _RANKING = (schemas.ScoreRequest,), (schemas.RerankRequest,)
_RANK = "Sort documents by how well they answer a query"

POOLING_ROUTES = (
    _pooling(
        "/v1/embeddings",
        create_embeddings,
        "Texts to vectors",
        (schemas.EmbeddingRequest,),
        (answers.Embeddings,),
        ("embed",),
    ),
    _pooling(
        "/v2/embed",
        embed_texts,
        "Texts to vectors, with Cohere's API",
        (schemas.CohereEmbedRequest,),
        (answers.CohereEmbeddings,),
        ("embed",),
    ),
    _pooling(
        "/pooling",
        create_pooling,
        "Texts to vectors, one per text or one per token, by task",
        (schemas.PoolingRequest,),
        (answers.PooledList,),
        ("embed", "classify", "token_embed", "token_classify"),
    ),
    _pooling(
        "/classify",
        classify,
        "Texts to classes",
        (schemas.ClassificationRequest,),
        (answers.Classifications,),
        ("classify",),
    ),
    _pooling("/score", score, "Scores of pairs of texts", _SCORE, (answers.Scores,), _SCORING),
    _pooling("/v1/score", score_v1, "Scores of pairs of texts", _SCORE, (answers.Scores,), _SCORING),
    _pooling("/rerank", rerank, _RANK, _RANKING, (answers.Ranking,), _SCORING),
    _pooling("/v1/rerank", rerank_v1, f"{_RANK}, with Jina's API", _RANKING, (answers.Ranking,), _SCORING),
    _pooling("/v2/rerank", rerank_v2, f"{_RANK}, with Cohere's API", _RANKING, (answers.Ranking,), _SCORING),
)

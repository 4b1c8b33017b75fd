"""Scores, rankings and Cohere's embeddings, with an embedding model and with a cross-encoder."""

import math
from operator import mul

import pytest

from paged_serve.frontend.http.openai.pooling.pairs import PRODUCTS_PER_CHARACTER
from paged_serve.frontend.text.off_loop import INLINE_CHARS

from ...http_server import Server
from .pooling_server import CLASSIFIES, bert_folder, numbers, pooling_server

S, R = "/score", "/rerank"
TEXTS = ["Paris is in France.", "A cat.", "Paris", "Berlin is in Germany"]


def cosine(a: list[float], b: list[float]) -> float:
    norms = math.fsum(x * x for x in a) * math.fsum(x * x for x in b)
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(norms)


def vector(server: Server, text: str) -> list[float]:
    return numbers(server, server.tokenizer.encode(text))


def pair(server: Server, query: str, document: str) -> tuple[list[int], int]:
    """(tokens, index of the second text) in BERT's form."""
    encode, special = server.tokenizer.encode, server.tokenizer.token_id
    first, second = ([*encode(text, add_special_tokens=False)] for text in (query, document))
    head = [special("[CLS]"), *first, special("[SEP]")]
    return [*head, *second, special("[SEP]")], len(head)


@pytest.fixture
def cross_encoder(folder, tmp_path) -> Server:
    """A server of a cross-encoder."""
    return pooling_server(bert_folder(folder, tmp_path / "tiny"), CLASSIFIES, num_labels=1)


@pytest.mark.parametrize("path", [S, "/v1/score"])
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
def test_embeddings_are_compared(folder, path, names):
    server = pooling_server(folder)
    answer = server.good(path, {names[0]: TEXTS[0], names[1]: TEXTS, "request_id": "r"})
    first = vector(server, TEXTS[0])
    assert answer["data"] == [
        {"index": index, "object": "score", "score": cosine(first, vector(server, text))}
        for index, text in enumerate(TEXTS)
    ]
    assert answer["data"][0]["score"] == 1.0
    assert (answer["id"], answer["object"], answer["model"]) == ("score-r", "list", "tiny")
    assert answer["usage"]["prompt_tokens"] == len(TEXTS[0]) + sum(map(len, TEXTS))


def test_equal_numbers_of_texts_are_compared_one_to_one(folder):
    server = pooling_server(folder)
    data = server.good(S, {"text_1": TEXTS, "text_2": TEXTS[::-1]})["data"]
    both = zip(TEXTS, TEXTS[::-1], strict=True)
    assert [each["score"] for each in data] == [cosine(vector(server, a), vector(server, b)) for a, b in both]


def test_a_cross_encoder_reads_pairs(cross_encoder):
    data = cross_encoder.good(S, {"text_1": "where", "text_2": TEXTS})["data"]
    for one, asked, text in zip(data, cross_encoder.engine.pooled, TEXTS, strict=True):
        ids, begins = pair(cross_encoder, "where", text)
        assert (asked.prompt_token_ids, asked.params.second_text) == (ids, begins)
        assert [one["score"]] == numbers(cross_encoder, ids, task="classify", second_text=begins)
    alone = [cross_encoder.good(S, {"text_1": "where", "text_2": text})["data"][0]["score"] for text in TEXTS]
    assert [one["score"] for one in data] == alone
    cross_encoder.good(S, {"text_1": TEXTS, "text_2": TEXTS, "use_activation": False})
    assert [each.prompt_token_ids for each in cross_encoder.engine.pooled[-4:]] == [
        pair(cross_encoder, a, a)[0] for a in TEXTS
    ]
    assert not cross_encoder.engine.pooled[-1].params.use_activation


def max_sim(a: list[float], b: list[float], columns: int) -> float:
    """The sum over the tokens of `a` of their best dot products."""
    first, second = ([x[at : at + columns] for at in range(0, len(x), columns)] for x in (a, b))
    return math.fsum(max(math.fsum(map(mul, row, other)) for other in second) for row in first)


def test_late_interaction_counts_the_best_match_of_each_token(folder):
    server = pooling_server(folder, ("token_embed",))
    columns = server.engine.limits.embedding_size
    by_text = {text: numbers(server, server.tokenizer.encode(text), task="token_embed") for text in TEXTS}
    expected = [max_sim(by_text[TEXTS[0]], by_text[text], columns) for text in TEXTS]
    data = server.good(S, {"text_1": TEXTS[0], "text_2": TEXTS})["data"]
    assert [each["score"] for each in data] == expected
    assert {each.params.task for each in server.engine.pooled} == {"token_embed"}
    ranking = server.good(R, {"query": TEXTS[0], "documents": TEXTS})["results"]
    assert [each["relevance_score"] for each in ranking] == sorted(expected, reverse=True)
    data = server.good(S, {"text_1": TEXTS, "text_2": TEXTS[::-1]})["data"]
    both = zip(TEXTS, TEXTS[::-1], strict=True)
    assert [each["score"] for each in data] == [max_sim(by_text[a], by_text[b], columns) for a, b in both]


def test_a_late_interaction_model_has_no_vector_of_a_whole_text(folder):
    server = pooling_server(folder, ("token_embed",))
    error = server.ask("POST", "/v1/embeddings", {"input": "a"}).json()["error"]
    assert (error["code"], error["param"]) == (400, "model")
    assert "/v1/embeddings needs a model that serves embed; tiny serves token_embed" in error["message"]
    error = server.ask("POST", S, {"text_1": ["a", "b"], "text_2": "c"}).json()["error"]
    assert (error["code"], error["param"]) == (400, "text_1")


def test_scores_of_long_texts_are_computed_beside_the_loop(folder):
    server = pooling_server(folder, ("token_embed",))
    long, columns = "Where is Paris? " * 4, server.engine.limits.embedding_size
    a = numbers(server, server.tokenizer.encode(long), task="token_embed")
    assert len(a) ** 2 // columns > INLINE_CHARS * PRODUCTS_PER_CHARACTER
    assert server.good(S, {"text_1": long, "text_2": long})["data"][0]["score"] == max_sim(a, a, columns)


def test_the_second_text_has_its_type_only_if_the_model_has_types(folder, tmp_path):
    server = pooling_server(bert_folder(folder, tmp_path, config={"type_vocab_size": 1}), CLASSIFIES, num_labels=1)
    server.good(S, {"text_1": "a", "text_2": "b"})
    assert server.engine.pooled[0].params.second_text is None


@pytest.mark.parametrize(
    ("kept", "query", "document"),
    [(-1, "q" * 30, "d" * 31), (10, "q" * 3, "d" * 4), (20, "q" * 8, "d" * 9), (3, "", ""), (12, "qqqq", "ddddd")],
)
def test_the_longer_text_of_a_pair_is_cut_first(cross_encoder, kept, query, document):
    cross_encoder.good(S, {"text_1": "q" * 60, "text_2": "d" * 60, "truncate_prompt_tokens": kept})
    assert cross_encoder.engine.pooled[0].prompt_token_ids == pair(cross_encoder, query, document)[0]
    assert len(cross_encoder.engine.pooled[0].prompt_token_ids) == (64 if kept == -1 else kept)


def test_only_the_longer_text_of_a_pair_is_cut_if_that_is_enough(cross_encoder):
    cross_encoder.good(S, {"text_1": "qqq", "text_2": "d" * 60, "truncate_prompt_tokens": 20})
    cross_encoder.good(S, {"text_1": "q" * 60, "text_2": "dd", "truncate_prompt_tokens": 20, "truncation_side": "left"})
    assert [each.prompt_token_ids for each in cross_encoder.engine.pooled] == [
        pair(cross_encoder, "qqq", "d" * 14)[0],
        pair(cross_encoder, "q" * 15, "dd")[0],
    ]
    error = cross_encoder.ask("POST", S, {"text_1": "qqq", "text_2": ["a", "d" * 60]}).json()["error"]
    assert (error["code"], error["param"]) == (400, "text_2")
    assert "This model accepts at most 64 tokens; text_2[1] with its query has 66." in error["message"]
    error = cross_encoder.ask("POST", S, {"text_1": ["a", "q" * 40_000], "text_2": ["a", "d"]}).json()["error"]
    assert (error["code"], error["param"]) == (400, "text_1")
    assert "text_1[1] has at least" in error["message"]


@pytest.mark.parametrize("path", [R, "/v1/rerank", "/v2/rerank"])
def test_documents_are_sorted_by_score_and_equal_ones_keep_their_order(folder, path):
    server = pooling_server(folder)
    documents = [TEXTS[1], TEXTS[3], {"text": TEXTS[0]}, TEXTS[2], TEXTS[1], TEXTS[0]]
    answer = server.good(path, {"query": TEXTS[0], "documents": documents, "request_id": "r"})
    texts = [each if isinstance(each, str) else each["text"] for each in documents]
    scores = [cosine(vector(server, TEXTS[0]), vector(server, text)) for text in texts]
    order = sorted(range(6), key=lambda index: (-scores[index], index))
    assert order[:2] == [2, 5]
    assert answer["results"] == [
        {"index": index, "relevance_score": scores[index], "document": {"text": texts[index]}} for index in order
    ]
    assert (answer["id"], answer["model"]) == ("rerank-r", "tiny")
    few = server.good(path, {"query": TEXTS[0], "documents": documents, "top_n": 2, "return_documents": False})
    assert few["results"] == [{"index": index, "relevance_score": scores[index]} for index in order[:2]]
    for top_n in (0, None, 100):
        body = {"query": TEXTS[0], "documents": documents, "top_n": top_n}
        assert server.good(path, body)["results"] == answer["results"]


JINA = {  # from the example of Jina's reranker API
    "model": "tiny",
    "query": "organic skincare",
    "top_n": 3,
    "documents": ["Bio-Hautpflege", "neue Make-up-Trends", "cuidado de la piel", "new makeup trends"],
    "return_documents": False,
}
COHERE = {  # from the example of Cohere's API, versions 1 and 2
    "model": "tiny",
    "query": "What is the capital of the USA?",
    "top_n": 3,
    "documents": ["Carson City", "Saipan is the capital", "Washington, D.C.", "Capital punishment"],
    "max_tokens_per_doc": 9,
}


@pytest.mark.parametrize(("path", "body"), [("/v1/rerank", JINA), ("/v1/rerank", COHERE), ("/v2/rerank", COHERE)])
def test_bodies_of_jina_and_cohere_are_accepted(cross_encoder, path, body):
    answer = cross_encoder.good(path, body)
    assert len(answer["results"]) == 3
    assert {each["index"] for each in answer["results"]} <= set(range(4))
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    documents = [text[: body.get("max_tokens_per_doc")] for text in body["documents"]]
    assert [each.prompt_token_ids for each in cross_encoder.engine.pooled] == [
        pair(cross_encoder, body["query"], text)[0] for text in documents
    ]


@pytest.mark.parametrize(
    ("fields", "query", "read"),
    [
        ({}, "q", "d" * 8 + "e"),
        ({"truncate_prompt_tokens": -1, "truncation_side": "left"}, "q", "e" + "d" * 8),
        ({"truncate_prompt_tokens": 8}, "qq", "ddd"),
    ],
)
def test_a_document_longer_than_the_context_is_cut_before_it_is_paired(cross_encoder, fields, query, read):
    long = "d" * 8 + "e" + "d" * 40_000 + "e" + "d" * 8
    body = {"query": "q" * len(query), "documents": ["a", long], "max_tokens_per_doc": 9}
    cross_encoder.good(R, body | fields)
    assert cross_encoder.engine.pooled[1].prompt_token_ids == pair(cross_encoder, query, read)[0]


def test_signs_are_packed_from_the_highest_bit(folder):
    server = pooling_server(folder)
    answer = server.good("/v2/embed", {"texts": ["abc"], "embedding_types": ["binary", "ubinary"]})
    expected = numbers(server, server.tokenizer.encode("abc"))
    byte = sum(128 >> place for place, number in enumerate(expected) if number > 0)
    assert answer["embeddings"] == {"binary": [[byte - 128]], "ubinary": [[byte]]}
    cut = server.good("/v2/embed", {"texts": ["abc"], "embedding_types": ["ubinary"], "output_dimension": 3})
    assert cut["embeddings"]["ubinary"] == [[byte & 0b11100000]]


def test_embeddings_for_cohere_have_its_form(folder, tmp_path):
    prompts = {"prompts": {"query": "Q:", "passage": "P:"}}
    server = pooling_server(bert_folder(folder, tmp_path, config_sentence_transformers=prompts))
    body = {"texts": ["abc", "de"], "input_type": "search_document"}
    answer = server.good("/v2/embed", body | {"embedding_types": ["float", "base64"], "output_dimension": 4})
    expected = [numbers(server, server.tokenizer.encode(f"P:{text}"), dimensions=4) for text in ("abc", "de")]
    assert answer["embeddings"]["float"] == expected
    assert len(answer["embeddings"]["base64"]) == 2
    assert (answer["texts"], answer["response_type"]) == (["abc", "de"], "embeddings_by_type")
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 13}}
    for fields, kept in (
        ({"input_type": "search_query"}, "[CLS]Q:" + "a" * 60 + "[SEP]"),
        ({"input_type": "clustering", "max_tokens": 5}, "[CLS]aaa[SEP]"),
        ({"truncate": "START", "texts": ["a" * 70 + "b"]}, "[CLS]" + "a" * 61 + "b[SEP]"),
    ):
        assert [*server.good("/v2/embed", {"texts": ["a" * 70]} | fields)["embeddings"]] == ["float"]
        assert server.tokenizer.decode(server.engine.pooled[-1].prompt_token_ids, skip_special_tokens=False) == kept


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        (S, {}, "text_1", "send one pair of fields"),
        (S, {"text_1": "a"}, "text_1", "send one pair of fields"),
        (S, {"text_1": "a", "documents": "b"}, "text_1", "send one pair of fields"),
        (S, {"text_1": "a", "text_2": "b", "queries": "c"}, "text_1", "send one pair of fields"),
        (S, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1", "text_1 has 2 texts and text_2 3"),
        (S, {"text_1": ["a", "b"], "text_2": "a"}, "text_1", "text_1 has 2 texts and text_2 1"),
        (S, {"text_1": "a", "text_2": []}, "text_2", "length >= 1"),
        (S, {"text_1": "a", "text_2": ["a"] * 2049}, "text_2", "length <= 2048"),
        (S, {"text_1": "a", "text_2": [1]}, "text_2[0]", "expected str"),
        (S, {"text_1": "a", "text_2": ["", "b"]}, "text_2", "text_2[0] is empty"),
        (S, {"text_1": "a", "text_2": "b", "stream": True}, "stream", "this answer is not streamed"),
        (R, {"query": "a"}, "documents", "documents is required"),
        (R, {"documents": ["a"]}, "query", "query is required"),
        (R, {"query": "a", "documents": []}, "documents", "length >= 1"),
        (R, {"query": "a", "documents": [{"title": "b"}]}, "documents[0].title", "not a known field"),
        (R, {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", ">= 0"),
        (R, {"query": "a", "documents": ["b"], "rank_fields": ["x"]}, "rank_fields", "a document is a text"),
        (
            R,
            {"query": "a", "documents": ["b"], "max_chunks_per_doc": 1},
            "max_chunks_per_doc",
            "use max_tokens_per_doc",
        ),
        (R, {"query": "a", "documents": ["b"], "activation": True}, "activation", "use use_activation"),
        ("/v2/embed", {"texts": []}, "texts", "length >= 1"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types[0]", "float, base64"),
        ("/v2/embed", {"texts": ["a"], "input_type": "image"}, "input_type", "search_query"),
        (
            "/v2/embed",
            {"texts": ["a" * 65], "truncate": "NONE"},
            "texts",
            "This model accepts at most 64 tokens; texts has 65. Shorten it, or send truncate: END to use only its",
        ),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 9}, "output_dimension", "output_dimension is 9"),
        ("/v2/embed", {"texts": ["a"], "truncate_prompt_tokens": 3}, "truncate", "by truncate"),
        ("/v2/embed", {"texts": ["a"], "images": ["x"]}, "images", "not a known field"),
    ],
)
def test_invalid_fields_are_refused_by_name(folder, path, body, param, says):
    server = pooling_server(folder)
    response = server.ask("POST", path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), response.text
    assert says in error["message"]
    assert not server.engine.pooled


def test_a_model_of_several_classes_gives_no_score(folder):
    error = pooling_server(folder, CLASSIFIES).ask("POST", S, {"text_1": "a", "text_2": "b"}).json()["error"]
    assert error["message"] == (
        "tiny has 3 classes; a score needs a model with one class or an embedding model: use /classify."
    )


def test_a_ranking_with_a_key_is_computed_once(cross_encoder):
    key = {"Idempotency-Key": "k" * 16}
    first, second = (cross_encoder.ask("POST", R, {"query": "a", "documents": TEXTS}, **key) for _ in range(2))
    assert first.content == second.content
    assert len(cross_encoder.engine.pooled) == len(TEXTS)

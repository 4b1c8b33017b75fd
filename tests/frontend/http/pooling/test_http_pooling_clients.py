"""Pooling requests of real programs: OpenAI's client itself, recorded bodies of other libraries, hostile bodies."""

import asyncio
import json
import struct

import httpx
import openai
import pytest

from ...http_server import Server
from .pooling_server import bert_folder, decoded, numbers, pooling_server

E = "/v1/embeddings"


async def openai_client(server: Server) -> openai.AsyncOpenAI:
    transport = httpx.ASGITransport(app=server.app)
    return openai.AsyncOpenAI(
        base_url="http://localhost/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport, trust_env=False),
    )


def test_openais_client_reads_base64_which_it_asks_for_and_floats(folder):
    server = pooling_server(folder)

    async def talk():
        async with await openai_client(server) as client:
            packed = await client.embeddings.create(model="tiny", input=["abc", "de"])
            plain = await client.embeddings.create(model="tiny", input=["abc", "de"], encoding_format="float")
            cut = await client.embeddings.create(model="tiny", input=[1, 2, 3], dimensions=2, user="u")
            with pytest.raises(openai.BadRequestError, match="at most 2048"):
                await client.embeddings.create(model="tiny", input=["a"] * 2049)
            return packed, plain, cut

    packed, plain, cut = asyncio.run(talk())
    expected = [numbers(server, server.tokenizer.encode(text)) for text in ("abc", "de")]
    assert [each.embedding for each in packed.data] == [each.embedding for each in plain.data] == expected
    assert cut.data[0].embedding == numbers(server, [1, 2, 3], dimensions=2)
    assert (packed.usage.prompt_tokens, packed.usage.total_tokens) == (5, 5)
    assert (packed.object, packed.model, packed.data[1].index, packed.data[1].object) == (
        "list",
        "tiny",
        1,
        "embedding",
    )


# The bodies that the libraries' code makes: langchain-openai's OpenAIEmbeddings with check_embedding_ctx_length (tokens
# of tiktoken, whatever the model) and without, llama-index's OpenAIEmbedding and OpenAILikeEmbedding, litellm's.
BODIES = [
    {"input": [[15, 96, 2], [33]], "model": "tiny", "encoding_format": "base64"},
    {"input": ["some text", "more"], "model": "tiny", "encoding_format": "base64"},
    {"input": ["some text"], "model": "tiny", "dimensions": 4, "encoding_format": "base64"},
    {"input": ["line one line two"], "model": "tiny", "encoding_format": "float"},
    {"input": "some text", "model": "tiny", "user": "u", "encoding_format": None},
    {"input": ["some text"], "model": "tiny", "truncate_prompt_tokens": 3, "add_special_tokens": False},
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_bodies_of_other_libraries_are_accepted(folder, body):
    server = pooling_server(folder)
    data = server.good(E, body)["data"]
    vectors = [
        decoded(each["embedding"]) if body.get("encoding_format") == "base64" else each["embedding"] for each in data
    ]
    params = {"dimensions": body["dimensions"]} if "dimensions" in body else {}
    assert vectors == [numbers(server, each.prompt_token_ids, **params) for each in server.engine.pooled]


def test_tokens_outside_the_vocabulary_are_refused_with_their_id(folder):
    error = pooling_server(folder).ask("POST", E, {"input": [[15496, 2159]], "encoding_format": "base64"}).json()
    assert error["error"]["message"] == "input has token 15496; the vocabulary is 0..399"


HOSTILE = [
    *(b"", b"{", b"[]", b"null", b'"input"', b"\xff", b'{"input": "\\ud800"}', b'{"input": "a", "input": ["b"]}'),
    b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"input": [' + b"[]," * 200_000 + b"[]]}",
    b'{"input": ["a"], "dimensions": 1e999}',
    b'{"input": [9999999999999999999999]}',
    b'{"input": [true]}',
    b'{"input": [1.5]}',
    b'{"input": {"text": "a"}}',
    b'{"input": "\\u0000"}',
    json.dumps({"input": "a", "dimensions": "4"}).encode(),
    json.dumps({"input": ["a", None]}).encode(),
    json.dumps({"input": "a", "encoding_format": ["float"]}).encode(),
    json.dumps(
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    ).encode(),
    json.dumps({"query": {"a": 1}, "documents": "a"}).encode(),
    json.dumps({"text_1": [["a"]], "text_2": {"b": 1}}).encode(),
    json.dumps({"texts": "a"}).encode(),
]


@pytest.mark.parametrize("path", [E, "/pooling", "/score", "/rerank", "/v2/embed"])
def test_hostile_bodies_are_refused_and_the_server_continues(folder, path):
    server = pooling_server(folder)
    for body in HOSTILE:
        response = server.ask("POST", path, body)
        assert response.status_code in (200, 400), (body[:60], response.text)
        if response.status_code == 400:
            assert response.json()["error"]["message"]
    assert server.good(E, {"input": "abc"})["data"]
    assert server.admission.num_active == 0


def test_texts_that_spell_special_tokens_are_text_if_the_server_is_set_so(folder, tmp_path):
    bert_folder(folder, tmp_path)
    trusting, strict = pooling_server(tmp_path), pooling_server(tmp_path, allow_special_tokens=False)
    spelled = trusting.tokenizer.token_id("[SEP]")
    for server, count in ((trusting, 2), (strict, 1)):
        server.good(E, {"input": "a[SEP]b"})
        assert server.engine.pooled[0].prompt_token_ids.count(spelled) == count


def test_numbers_are_the_same_bits_in_both_forms(folder):
    server = pooling_server(folder)
    plain = server.good(E, {"input": "abc", "encoding_format": "float"})["data"][0]["embedding"]
    packed = server.good(E, {"input": "abc", "encoding_format": "base64"})["data"][0]["embedding"]
    assert struct.pack(f"<{len(plain)}f", *plain) == struct.pack(f"<{len(plain)}f", *decoded(packed))
    assert plain == decoded(packed)

"""Vectors of a real server: the same bits alone, in a batch, through a kill, and by every interface."""

import asyncio
import base64
import re
import struct
import threading

import openai
import pytest

from paged_serve import Client, PoolingParams
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.text.tokenizer import Tokenizer

from ..serving import Server, serving

TEXTS = [
    f"The capital of country number {number} is a city{' with a long name' * (number % 7)}." for number in range(40)
]


def vectors(url: str, texts: list, **fields: object) -> list[bytes]:
    """The vectors as requested by the openai package; packed float32."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        data = client.embeddings.create(model="demo", input=texts, **fields).data
    return [struct.pack(f"<{len(each.embedding)}f", *each.embedding) for each in data]


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[bytes]:
    """The vectors of each text alone."""
    return [vectors(server.url, [text])[0] for text in TEXTS]


async def _read(url: str, stop: threading.Event) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=120) as client:

        async def one(number: int) -> None:
            while not stop.is_set():
                await client.completions.create(model="demo", prompt=f"Story {number}", max_tokens=60, temperature=1)

        await asyncio.gather(*map(one, range(4)))


def test_a_vector_has_the_same_bits_alone_in_a_batch_and_next_to_generations(server, undisturbed):
    assert len(set(undisturbed)) == len(TEXTS)
    assert vectors(server.url, TEXTS) == undisturbed
    stop = threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(_read(server.url, stop),))
    thread.start()
    try:
        assert vectors(server.url, TEXTS) == undisturbed
        assert vectors(server.url, TEXTS, encoding_format="float") == undisturbed
    finally:
        stop.set()
        thread.join()


def test_every_interface_gives_the_same_bits(server, undisturbed):
    status, answer = server.post("/pooling", {"input": TEXTS, "task": "embed", "encoding_format": "base64"})
    assert status == 200
    assert [base64.b64decode(each["data"]) for each in answer["data"]] == undisturbed
    status, answer = server.post("/v2/embed", {"texts": TEXTS, "embedding_types": ["base64"]})
    assert [base64.b64decode(each) for each in answer["embeddings"]["base64"]] == undisturbed
    with Client.connect(server.run_dir) as client:  # offline/test_llm_chat.py has LLM
        tokenizer = Tokenizer(str(demo_model_folder()))
        requests = [client.pool(tokenizer.encode(text), PoolingParams()) for text in TEXTS]
        assert [request.result().values for request in requests] == undisturbed


def test_a_text_is_most_similar_to_itself(server):
    status, answer = server.post("/rerank", {"query": TEXTS[3], "documents": TEXTS[:8], "top_n": 2})
    assert status == 200
    assert (answer["results"][0]["index"], answer["results"][0]["relevance_score"]) == (3, 1.0)
    assert answer["results"][0]["document"] == {"text": TEXTS[3]}


def test_fewer_dimensions_are_the_first_numbers_of_the_embedding(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        one = client.embeddings.create(model="demo", input=TEXTS[0], dimensions=16).data[0].embedding
    assert len(one) == 16
    status, answer = server.post("/classify", {"input": "a"})
    assert status == 400
    assert answer["error"]["message"].startswith(
        "/classify needs a model that serves classify; demo serves generate, emb"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["paged_serve.workers.process", "paged_serve.engine_core.process"])
def test_vectors_survive_the_death_of_a_process_bit_for_bit(undisturbed, module):
    with serving() as server:
        (victim, *_) = server.children(module)
        found: list[list[bytes]] = []
        asking = threading.Thread(target=lambda: found.append(vectors(server.url, TEXTS * 20)))
        asking.start()
        while re.search(r'^paged:request_success_total\{.*finished_reason="stop".*\} 0', server.metrics(), re.M):
            assert asking.is_alive()
        victim.kill()
        asking.join()
        assert found == [undisturbed * 20]
        victim.wait(60)

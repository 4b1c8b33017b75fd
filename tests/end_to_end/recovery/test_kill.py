"""A process is killed during many streams: every stream continues with exactly the bytes of an undisturbed run."""

import asyncio
import random
from collections.abc import Iterator

import openai
import pytest

from ..serving import Server, serving

NUM_STREAMS = 16


async def read_streams(url: str, kill_after: int, kill) -> list[str]:
    """The texts of all streams; `kill` is called once `kill_after` characters have been received in total."""
    seen = 0

    async def one(client: openai.AsyncOpenAI, index: int) -> str:
        nonlocal seen
        chunks = await client.completions.create(
            model="demo",
            prompt=f"Tell me story number {index}.",
            max_tokens=96,
            temperature=0 if index % 2 else 1.0,
            seed=index,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        text = ""
        async for chunk in chunks:
            text += chunk.choices[0].text
            before, seen = seen, seen + len(chunk.choices[0].text)
            if before < kill_after <= seen:
                kill()
        return text

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=90) as client:
        return await asyncio.gather(*(one(client, index) for index in range(NUM_STREAMS)))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--tp", "2") as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(server) -> list[str]:
    return asyncio.run(read_streams(server.url, 0, None))


# Fast tests that kill a core or a worker under streams are in test_processes.py, resume/ and answers/.
# One of two ranks is killed in plugins/test_served.py.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "module",
    ["paged_serve.workers.process", "paged_serve.engine_core.process"],
)
def test_streams_survive_the_death_of_a_process_byte_for_byte(server, undisturbed, module):
    kill_after = int(random.Random(module).uniform(0.1, 0.7) * sum(map(len, undisturbed)))
    (victim, *_) = server.children(module)
    assert asyncio.run(read_streams(server.url, kill_after, victim.kill)) == undisturbed
    victim.wait(60)

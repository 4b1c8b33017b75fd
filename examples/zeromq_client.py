"""Tokens in, tokens out over ZeroMQ, without HTTP: Client, and AsyncClient for programs with an event loop.

Run it:

    python examples/zeromq_client.py [MODEL]

Here the engine belongs to this program. The clients connect to a server in the same way: `Client.connect()` uses the
newest server of this user, `Client.connect("/tmp/paged-serve-1000/run-…")` the one with that run directory, which its
banner names.
"""

import asyncio
import sys

from paged_serve import LLM, AsyncClient, Client, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=16)


def with_client(run_dir: str, prompt: list[int]) -> list[int]:
    """Complete one prompt."""
    with Client.connect(run_dir) as client:
        request = client.submit(prompt, GREEDY)
        return [token for delta in request for token in delta.token_ids]


async def with_async_client(run_dir: str, prompts: list[list[int]]) -> list[list[int]]:
    """Complete all prompts at once."""

    async def complete(client: AsyncClient, prompt: list[int]) -> list[int]:
        return [token async for delta in client.submit(prompt, GREEDY) for token in delta.token_ids]

    async with await AsyncClient.connect(run_dir) as client:
        return await asyncio.gather(*(complete(client, prompt) for prompt in prompts))


def main(model: str = "") -> None:
    with LLM(model) as llm:
        tokenizer = llm.get_tokenizer()
        prompts = [tokenizer.encode(f"The capital of {country} is") for country in ("France", "Japan")]
        first = with_client(llm.run_dir, prompts[0])
        both = asyncio.run(with_async_client(llm.run_dir, prompts))
        print(first, repr(tokenizer.decode(first, skip_special_tokens=True)))
        print(*both, tokenizer.batch_decode(both, skip_special_tokens=True), sep="\n")
        print("the same tokens:", first == both[0])


if __name__ == "__main__":
    main(*sys.argv[1:])

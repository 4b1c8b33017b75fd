"""AsyncLLM: requests may arrive at any time; each is a stream of growing outputs.

Run it:

    python examples/async_engine.py [MODEL]
"""

import asyncio
import sys

from paged_serve import AsyncLLM, SamplingParams


async def complete(llm: AsyncLLM, prompt: str) -> str:
    """Return the prompt and its completion: the last output has the whole text."""
    text = ""
    async for output in llm.generate(prompt, SamplingParams(temperature=0, max_tokens=16)):
        text = output.outputs[0].text
    return prompt + text


async def main(model: str = "") -> None:
    async with AsyncLLM(model) as llm:
        countries = ("France", "Japan", "Peru", "Italy")
        for text in await asyncio.gather(*(complete(llm, f"The capital of {country} is") for country in countries)):
            print(text)

        printed = 0
        async for output in llm.chat([{"role": "user", "content": "What is the capital of Italy?"}]):
            text = output.outputs[0].text
            print(text[printed:], end="", flush=True)
            printed = len(text)
        print()

        endless = SamplingParams(max_tokens=None, ignore_eos=True)
        async for output in llm.generate("Once upon a time", endless, request_id="tale"):
            if len(output.outputs[0].token_ids) > 20:
                await llm.abort("tale")  # leaving the loop would abort it as well
        print("aborted:", output.outputs[0].finish_reason, "after", len(output.outputs[0].token_ids), "tokens")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""A conversation of several turns with LLM.chat.

Run it:

    python examples/chat.py [MODEL]
"""

import sys

from paged_serve import LLM, SamplingParams

QUESTIONS = ["What is the capital of Italy?", "What is the capital of Peru?"]


def main(model: str = "") -> None:
    messages: list[dict[str, str]] = []
    with LLM(model) as llm:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            [output] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
            messages.append({"role": "assistant", "content": output.outputs[0].text})
            print(f"user:      {question}\nassistant: {output.outputs[0].text}")
            print(f"           {output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens were cached")


if __name__ == "__main__":
    main(*sys.argv[1:])

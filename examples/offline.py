"""Many prompts at once, without a server.

Run it:

    python examples/offline.py [MODEL]      # a folder or a hub name; default: the built-in demo model
"""

import sys

from paged_serve import LLM, SamplingParams

PROMPTS = [f"The capital of {country} is" for country in ("France", "Japan", "Peru", "Italy")]


def main(model: str = "") -> None:
    with LLM(model) as llm:
        params = SamplingParams(temperature=0, max_tokens=16, logprobs=1)
        for output in llm.generate(PROMPTS, params):
            [answer] = output.outputs
            likelihood = answer.cumulative_logprob or 0.0
            print(f"{output.prompt}{answer.text}   ({answer.finish_reason}, log-probability {likelihood:.4f})")

        several = SamplingParams(n=3, temperature=1.0, seed=15, max_tokens=16)
        [output] = llm.generate("The capital of", several)
        print("three samples:", [sample.text for sample in output.outputs])


if __name__ == "__main__":
    main(*sys.argv[1:])

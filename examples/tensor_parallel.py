"""A model split over two processes gives the same bytes as in one.

Run it:

    python examples/tensor_parallel.py [MODEL]      # on CUDA each rank uses one device
"""

import sys

from paged_serve import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The capital of Japan is", "The sea"]


def main(model: str = "") -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=24)
    texts = []
    for num_ranks in (1, 2):
        with LLM(model, tensor_parallel_size=num_ranks) as llm:
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            texts.append([output.outputs[0].text for output in outputs])
    for prompt, text in zip(PROMPTS, texts[1], strict=True):
        print(repr(prompt + text))
    print("the same texts with one rank and with two:", texts[0] == texts[1])


if __name__ == "__main__":
    main(*sys.argv[1:])

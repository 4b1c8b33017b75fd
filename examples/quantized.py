"""The same model in bfloat16 and in int8: memory, quantization error, and answers.

Run it:

    python examples/quantized.py [MODEL]
"""

import sys

from paged_serve import LLM, SamplingParams

QUESTION = [{"role": "user", "content": "What is the capital of Italy?"}]


def main(model: str = "") -> None:
    for quantization in (None, "int8"):
        with LLM(model, quantization=quantization) as llm:
            facts = llm.get_facts()
            [output] = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
        print(f"{quantization or facts['dtype']:9s} {facts['weights_mb']:>8s} MB of weights: {output.outputs[0].text}")
        if quantization:
            print("          error of the weights:", facts["quantization_error"])


if __name__ == "__main__":
    main(*sys.argv[1:])

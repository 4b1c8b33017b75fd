"""Quantized models in real processes answer like the float model, alone and in a batch, on one rank and on two."""

import json
import shutil

import pytest

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.workers.kernels.cpu.library import best_library

from ...workers.tiny_models.quantized_checkpoints import write_quantized

CAPITALS = {"Iraq": "Baghdad", "Spain": "Madrid", "Italy": "Rome", "Norway": "Oslo", "Egypt": "Cairo", "Cuba": "Havana"}
PROMPTS = [f"The capital of {country} is" for country in CAPITALS]
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=1)


@pytest.fixture(scope="module")
def gptq_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "demo-gptq"
    write_quantized(demo_model_folder(), folder, "gptq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))  # as in nearly all such checkpoints
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo_model_folder() / name, folder)
    return str(folder)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        # test_tensor_parallel.py compares the ranks of int8; test_quantized_checkpoints.py loads gptq, also on ranks.
        ("", {"quantization": "int8", "kv_cache_dtype": "int8"}),
        pytest.param("", {"quantization": "int8", "tensor_parallel_size": 2}, marks=pytest.mark.nightly),
        pytest.param("gptq", {"tensor_parallel_size": 2}, marks=pytest.mark.nightly),
        pytest.param("gptq", {}, marks=pytest.mark.nightly),
        pytest.param("", {"quantization": "int8"}, marks=pytest.mark.nightly),
        pytest.param("", {"kv_cache_dtype": "int8"}, marks=pytest.mark.nightly),
    ],
    ids=["int8-weights-and-cache", "int8-two-ranks", "gptq-two-ranks", "gptq", "int8", "int8-cache"],
)
def test_a_quantized_model_names_capitals_alone_and_in_a_batch(model, options, gptq_folder):
    if "kv_cache_dtype" in options and best_library() is None:
        pytest.skip("the kernels are not built")
    with LLM(gptq_folder if model else "", max_num_seqs=8, num_blocks=128, threads=1, **options) as llm:
        together = llm.generate(PROMPTS, GREEDY)
        llm.reset_prefix_cache()
        facts = llm.get_facts()
        alone = [llm.generate([prompt], GREEDY)[0] for prompt in PROMPTS]
    assert facts["kernels"] == (best.isa if (best := best_library()) else "torch")
    assert facts["dtype"] == ("float16" if model else "bfloat16")
    if "kv_cache_dtype" in options:
        assert facts["kv_dtype"] == "int8"
    if model or "quantization" in options:
        assert ("int4 g32" if model else "29 matrices int8") in facts["quantization"]
    assert [output.outputs[0].text for output in together] == [f" {city}." for city in CAPITALS.values()]
    assert [output.outputs[0].logprobs for output in together] == [output.outputs[0].logprobs for output in alone]

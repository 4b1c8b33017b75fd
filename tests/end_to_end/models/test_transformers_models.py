"""A model of transformers in the real processes answers as transformers does: alone, in a batch, on two ranks."""

import pytest
import torch

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.workers.kernels.cpu.library import best_library

from ...workers.tiny_models.checkpoints import random_tokens, reference_greedy
from ...workers.tiny_models.transformers_models import write

GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=1, ignore_eos=True)
PROMPTS = [random_tokens(length, seed=length, vocab_size=256) for length in (70, 33, 5)]

VOCABULARY = {"vocab_size": 1024}  # of the demo model's tokenizer


@pytest.fixture(autouse=True)
def _with_kernels():
    if best_library() is None:
        pytest.skip("the kernels are not built")


def answers(folder, ranks=1):
    """Token ids and logprobs of each prompt, in a batch and alone, which are equal."""
    options = {"model_impl": "transformers", "max_num_seqs": 8, "max_model_len": 256, "num_blocks": 128, "threads": 1}
    with LLM(str(folder), tokenizer=str(demo_model_folder()), tensor_parallel_size=ranks, **options) as llm:
        together = [output.outputs[0] for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
        llm.reset_prefix_cache()
        alone = [llm.generate([prompt], GREEDY, use_tqdm=False)[0].outputs[0] for prompt in PROMPTS]
    found = [(list(output.token_ids), output.logprobs) for output in together]
    assert found == [(list(output.token_ids), output.logprobs) for output in alone]
    return found


def test_a_model_of_transformers_answers_alone_as_in_a_batch(tmp_path):
    model = write("Ministral", tmp_path, **VOCABULARY)
    expected = [reference_greedy(model, prompt, GREEDY.max_tokens) for prompt in PROMPTS]
    assert [token_ids for token_ids, _ in answers(tmp_path)] == expected


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["Ministral", "Apertus"])
def test_two_processes_give_the_bits_of_one_in_bfloat16(name, tmp_path):
    write(name, tmp_path, torch.bfloat16, **VOCABULARY)
    assert answers(tmp_path) == answers(tmp_path, ranks=2)

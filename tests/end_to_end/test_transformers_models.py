"""A model of transformers in the real processes answers as transformers does: alone, in a batch, on two ranks."""

import pytest

from paged_serve import LLM, SamplingParams
from paged_serve.workers.kernels.cpu.library import best_library

from ..workers.checkpoints import random_tokens, reference_greedy
from ..workers.transformers_models import write

GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=1, ignore_eos=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_of_transformers_answers_alone_as_in_a_batch(ranks, tmp_path):
    if best_library() is None:
        pytest.skip("the kernels are not built")
    model = write("Ministral", tmp_path)
    prompts = [random_tokens(length, seed=length, vocab_size=256) for length in (70, 33, 5)]
    expected = [reference_greedy(model, prompt, GREEDY.max_tokens) for prompt in prompts]
    options = {"max_num_seqs": 8, "max_model_len": 256, "threads": 1, "tensor_parallel_size": ranks}
    with LLM(str(tmp_path), **options) as llm:
        together = [output.outputs[0] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
        llm.reset_prefix_cache()
        alone = [llm.generate([prompt], GREEDY, use_tqdm=False)[0].outputs[0] for prompt in prompts]
    assert [list(output.token_ids) for output in together] == expected
    assert [output.logprobs for output in together] == [output.logprobs for output in alone]

"""A mixture of experts in the real processes: one by one, crowded on several ranks and after kills, the same bytes."""

import pytest

from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.config.model_folder import demo_model_folder

from ...workers.invariance.workloads.random_workload import EXPERTS
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..answers.test_determinism import CROWDED, VOCAB_SIZE, crowded, one_by_one, random_questions
from ..serving import serving


def check_experts(folder, seed: int, count: int, num_kills: int, ranks: int, *options: str) -> None:
    """Check that several ranks on a small server whose workers are killed answer as one rank does, one by one."""
    model = write_tiny_model(folder, vocab_size=VOCAB_SIZE, **EXPERTS)
    served = (model, "--tokenizer", str(demo_model_folder()), "--threads", "1", *options)
    questions = random_questions(seed, count)
    with serving(*served) as roomy, Client.connect(roomy.run_dir) as client:
        wanted = one_by_one(client, questions)
    with serving(*served, *CROWDED, "--tp", str(ranks)) as small:
        crowded(small, questions, wanted, num_kills)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_two_crowded_ranks_that_are_killed_give_the_bytes_of_one_alone(tmp_path):
    check_experts(tmp_path, seed=1, count=12, num_kills=1, ranks=2)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("options", [(), ("--quantization", "int8"), ("--dtype", "float16")], ids=" ".join)
def test_any_number_of_ranks_with_kills_gives_the_bytes_of_one_alone(options, ranks, tmp_path):
    check_experts(tmp_path, 40 + ranks, 30, 3, ranks, *options)

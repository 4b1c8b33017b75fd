"""Models in fp8 in the real processes: crowded on ranks and after kills, the bytes of the float model one by one."""

import pytest

from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.workers.kernels.cpu.library import best_library

from ...workers.invariance.workloads.random_workload import EXPERTS
from ...workers.tiny_models.quantized_checkpoints import write_quantized
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..answers.test_determinism import CROWDED, VOCAB_SIZE, crowded, one_by_one, random_questions
from ..serving import serving


def check_fp8(home, form: str, changes, seed: int, count: int, num_kills: int, ranks: int) -> None:
    """Check the answers of a crowded server of codes by those of a roomy one of their values in bfloat16."""
    if best_library() is None:
        pytest.skip("the kernels are not built")
    (home / "plain").mkdir()
    write_tiny_model(home / "plain", vocab_size=VOCAB_SIZE, **changes)
    write_quantized(home / "plain", home / "codes", form)
    options = ("--tokenizer", str(demo_model_folder()), "--threads", "1")
    questions = random_questions(seed, count)
    with serving(str(home / "codes-float"), *options) as roomy, Client.connect(roomy.run_dir) as client:
        wanted = one_by_one(client, questions)
    with serving(str(home / "codes"), *options, *CROWDED, "--tp", str(ranks)) as small:
        crowded(small, questions, wanted, num_kills)


# In the fast tests, workers/quantization/ has the values of codes, and workers/distributed/ the ranks of experts.
# A crowded server loses its worker in answers/test_determinism.py, and one of two ranks in plugins/test_served.py.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_experts_in_fp8_on_two_ranks_that_are_killed_give_the_bytes_of_floats_alone(tmp_path):
    check_fp8(tmp_path, "fp8-16", EXPERTS, seed=11, count=8, num_kills=1, ranks=2)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("changes", [{}, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("form", ["fp8-16", "fp8-matrix", "ct-fp8", "ct-fp8-tensor"])
def test_any_number_of_ranks_with_kills_gives_the_bytes_of_floats_alone(form, changes, ranks, tmp_path):
    check_fp8(tmp_path, form, changes, 60 + ranks, 30, 3, ranks)

"""Latent attention in the real processes: crowded on several ranks and after kills, the bytes of one rank alone."""

import pytest

from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.config.model_folder import demo_model_folder

from ...workers.invariance.workloads.random_workload import LATENT
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..answers.test_determinism import CROWDED, VOCAB_SIZE, crowded, one_by_one, random_questions
from ..serving import serving


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("options", [(), ("--quantization", "int8")], ids=" ".join)
def test_any_number_of_ranks_with_kills_gives_the_bytes_of_one_alone(options, ranks, tmp_path):
    model = write_tiny_model(tmp_path, vocab_size=VOCAB_SIZE, **LATENT)
    served = (model, "--tokenizer", str(demo_model_folder()), "--threads", "1", *options)
    questions = random_questions(30 + ranks, 20)
    with serving(*served) as roomy, Client.connect(roomy.run_dir) as client:
        wanted = one_by_one(client, questions)
    with serving(*served, *CROWDED, "--tp", str(ranks)) as small:
        crowded(small, questions, wanted, num_kills=2)

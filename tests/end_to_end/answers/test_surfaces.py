"""Models with states, latent attention and experts: on each surface, on any ranks, killed processes change no byte."""

import pytest
import torch

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.workers.kernels.cpu.library import runnable_isas

from ...workers.tiny_models.checkpoints import random_tokens, write_checkpoint
from ..surfaces import Answers, check_kills, serving_on

pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.skipif(not runnable_isas(), reason="the kernels are not built"),
]
VOCAB_SIZE = 1024  # the tokenizer's
MODELS = ("lfm2", "mamba2", "qwen3-next", "nemotron-h", "deepseek-v2", "deepseek-v3.2", "gpt-oss")
SURFACES = ("LLM", "client", "HTTP")
RANKS = (1, 2, 4)
SHARED = random_tokens(560, 1, VOCAB_SIZE)  # more than a block of 512, the largest of these models
FIRST, *BOTH = ([*SHARED, *random_tokens(600, seed, VOCAB_SIZE)] for seed in (2, 3, 4))


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Answers]:
    """The answers of each model, from the first surface and number of ranks that was tested; all others are equal."""
    return {}


@pytest.fixture(scope="module")
def surface(request, tmp_path_factory):
    """A model and its running engine: (model, name of its surface, ranks)."""
    model, name, ranks = request.param
    folder = tmp_path_factory.mktemp(model)
    write_checkpoint(model, folder, torch.bfloat16, {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 1400})
    with serving_on(name, str(folder), ranks, tmp_path_factory.mktemp("t")) as running:
        yield model, running


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("roles", [("worker",), ("engine-core",), ("engine-core", "worker")], ids=" ".join)
@pytest.mark.parametrize(
    "surface",
    [(model, name, ranks) for model in MODELS for name in SURFACES for ranks in RANKS],
    indirect=True,
    ids=str,
)
def test_kills_amid_prompts_and_decode_steps_change_no_byte_on_any_surface(surface, roles, undisturbed):
    model, running = surface
    if model not in undisturbed:
        undisturbed[model] = [answer for prompt in BOTH for answer in running.ask([prompt])]
    check_kills(running, BOTH, FIRST, undisturbed[model], roles, ("prompt", "decode"))

"""Encoders on our CUDA kernels in the emulator: close to float32 for texts of any length, alone and together."""

import pytest
import torch

from paged_serve.workers.backends.cuda.backend import CudaBackend, computes
from paged_serve.workers.backends.cuda.kernel_list import kernels_for

from ...workers.paged_loop import PagedLoop
from ...workers.pooling.kinds_of_encoders import ENCODERS, tokens
from ...workers.pooling.references import hidden_states, write_reference
from ...workers.tiny_models.checkpoints import ours
from ..compilation.test_kernel_list import RecordingLauncher

REACH = 16  # ModernBERT's local_attention is 32
LENGTHS = (REACH - 4, 2 * REACH - 2, 2 * REACH, 3 * REACH)  # ranges of queries whose numbers round up alike
KINDS = "BertModel", "ModernBertModel", "ElectraModel"


@pytest.fixture(scope="module", params=KINDS)
def encoder(request, tmp_path_factory):
    """The model of transformers in float32, and ours with its launcher."""
    folder = tmp_path_factory.mktemp("encoder")
    exact = write_reference(folder, request.param, ENCODERS[request.param], torch.bfloat16)
    launcher = RecordingLauncher()
    model = ours(folder, backend=CudaBackend(launcher, "sm_90a", 2, device="cpu"))
    assert computes(model.geometry)
    return exact, model, launcher


def test_texts_of_any_length_are_close_to_float32_alone_and_together(encoder):
    exact, model, _ = encoder
    texts = [tokens(60)[-length:] for length in LENGTHS]
    loop = PagedLoop(model)
    together = loop.hidden([(loop.row(text), len(text)) for text in texts]).split(LENGTHS)
    for text, found in zip(texts, together, strict=True):
        expected = torch.from_numpy(hidden_states(exact, text))
        assert float((found.float() - expected).norm(dim=1).max() / expected.norm(dim=1).max()) < 0.05
        assert torch.equal(PagedLoop(model).hidden([(loop.row(text), len(text))]), found)


def test_the_kernel_list_is_what_a_step_launches(encoder):
    _, model, launcher = encoder
    loop, (text, *_) = PagedLoop(model), (tokens(60)[: 3 * REACH],)
    launcher.launched.clear()
    loop.hidden([(loop.row(text), len(text))])
    loop.hidden([(loop.row(text[:REACH]), REACH)])
    listed = {kernel for kernel in kernels_for(model, torch.bfloat16, 16) if "sampler" not in kernel.function}
    assert set(launcher.launched) == listed

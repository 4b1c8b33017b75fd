"""Steps that verify drafts on our CUDA kernels in the emulator: the bytes of plain decoding there."""

from collections import Counter

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL
from paged_serve.workers.runner.model_runner import ModelRunner
from paged_serve.workers.sampling.custom_sampling import with_processors

from ...workers.speculation.workloads import TOKENIZER, TOKENS_OF_GRAMMARS, Bench, played_alike
from ...workers.tiny_models.checkpoints import write_checkpoint
from ...workers.tiny_models.tiny_model import write_tiny_model
from ..emulated import EmulatorLauncher
from .test_cuda_workloads import Padded

SEED = 3  # of a small workload
SEED_OF_BOTH = 13  # of one with accepted and rejected drafts


def new_runner(model, cache, group, scheduler, max_len, grammars, processors, drafter) -> ModelRunner:
    vocab_size, rows = model.geometry.vocab_size, scheduler.max_num_seqs
    return ModelRunner(
        model,
        cache,
        group,
        with_processors(DeviceSampler(model.backend.launcher, vocab_size, "cpu"), processors, vocab_size, rows),
        num_rows=rows,
        max_model_len=max_len,
        max_tokens=scheduler.max_num_batched_tokens,
        steps_in_flight=2,
        decode_step=Padded(rows),
        grammars=grammars,
        drafter=drafter,
    )


def loaded(folder: str):
    backend = CudaBackend(EmulatorLauncher(), "sm_90a", multiprocessors=2, device="cpu")
    config = ModelConfig(device="cpu")
    return load_model(folder, config, TensorParallelGroup(), lambda done, total: None, backend=backend)


def test_a_workload_keeps_its_bytes(tmp_path):
    bench = Bench(loaded(write_tiny_model(tmp_path)), new_runner=new_runner)
    assert played_alike(bench, SEED, most_requests=2).drafts["accepted"] > 5


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", ["lfm2", "granite4", "qwen3-next", "jamba"])
def test_recurrent_layers_keep_their_bytes(variant, tmp_path):
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    bench = Bench(loaded(str(tmp_path)), new_runner=new_runner)
    drafts = played_alike(bench, SEED_OF_BOTH, most_requests=2).drafts
    assert drafts["made"] > drafts["accepted"] > 5


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_workloads_with_grammars_keep_their_bytes():
    bench = Bench(loaded(str(DEMO_MODEL)), Grammars(TOKENIZER, TOKENS_OF_GRAMMARS, (2, 0)), new_runner=new_runner)
    drafts = sum((played_alike(bench, seed).drafts for seed in range(10, 20)), Counter[str]())
    assert drafts["accepted"] > 100

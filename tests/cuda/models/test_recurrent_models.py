"""Models with recurrent layers on our CUDA kernels in the emulator: accurate, and the same in any step and graph."""

from dataclasses import fields

import pytest
import torch

from paged_serve.workers.backends.cuda.backend import CudaBackend, computes
from paged_serve.workers.backends.cuda.kernel_list import kernels_for
from paged_serve.workers.batch.input_batch import InputBatch

from ...workers.paged_loop import PagedLoop
from ...workers.tiny_models.checkpoints import (
    ours,
    random_tokens,
    reference,
    reference_logits,
    transformers_model,
    write_checkpoint,
)
from ..compilation.test_kernel_list import RecordingLauncher
from ..devices.emulated_device import EmulatedDevice, StreamLauncher
from ..emulated import EmulatorLauncher

VARIANTS = {
    "mamba2": torch.bfloat16,  # no attention and no feed-forward
    "mamba2-biased": torch.float16,  # convolutions without biases, limits of steps
    "mamba": torch.bfloat16,
    "mamba-biased": torch.bfloat16,  # convolutions without biases
    "falcon-mamba": torch.float16,  # norms without weights
    "jamba": torch.bfloat16,  # norms with weights, attention without rotation, experts
    "jamba-dense": torch.float16,
    "lfm2": torch.bfloat16,
    "lfm2-moe": torch.bfloat16,
    "granite4": torch.bfloat16,  # a block of 432 tokens
    "qwen3-next": torch.bfloat16,  # gated delta nets, gates of attention
    "qwen3.5": torch.float16,
    "olmo-hybrid": torch.bfloat16,  # betas up to 2, norms at other places
    "granite4-dense": torch.bfloat16,
    "bamba": torch.bfloat16,
    "nemotron-h": torch.bfloat16,  # layers of one part
    "nemotron-h-dense": torch.float16,  # no experts
}
IN_CI = ("mamba2",)
GRAPHS = ("mamba", "falcon-mamba", "jamba", "lfm2-moe", "granite4", "qwen3-next", "nemotron-h")


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.nightly) for name in VARIANTS]
)
def test_a_family_is_close_to_float32_in_any_chunk_and_batch(tmp_path, variant):
    """A token's error is usually less than in transformers, which rounds more often; the kernels are those listed."""
    dtype, prompt = VARIANTS[variant], random_tokens(70)
    exact = reference_logits(reference(variant, tmp_path, dtype), prompt)
    by_transformers = reference_logits(transformers_model(tmp_path, dtype), prompt)
    launcher = RecordingLauncher()
    model = ours(tmp_path, backend=CudaBackend(launcher, "sm_90a", 2, device="cpu"))
    assert computes(model.geometry)
    loop = PagedLoop(model)
    for tensor in loop.cache.states:
        tensor.fill_(255)  # NaN
    found = loop.prefill(loop.row(prompt))
    assert _usual_error(found, exact) < 1.1 * _usual_error(by_transformers, exact)
    assert torch.equal(loop.prefill(loop.row(prompt), chunk=37), found)
    first, second = loop.row(prompt), loop.row(random_tokens(30, seed=1))
    loop.prefill(second)
    second.token_ids.append(5)
    assert torch.equal(loop.step([(second, 1), (first, 70)])[1:], found)
    listed = {kernel for kernel in kernels_for(model, dtype, loop.block_size) if "sampler" not in kernel.function}
    assert set(launcher.launched) == listed


def _usual_error(logits, exact):
    return float((logits - exact).norm(dim=1).median())


@pytest.mark.parametrize("variant", [*IN_CI, *(pytest.param(name, marks=pytest.mark.nightly) for name in GRAPHS)])
def test_a_replayed_decode_step_with_padding_has_the_bits_of_steps_without(tmp_path, variant):
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    device = EmulatedDevice()
    backend = CudaBackend(StreamLauncher(EmulatorLauncher(), device.stream), "sm_90a", 2, device="cpu")
    model = ours(tmp_path, backend=backend)
    eager, captured = PagedLoop(model), PagedLoop(model)
    rows = [[loop.row(random_tokens(40)), loop.row(random_tokens(9, seed=1))] for loop in (eager, captured)]
    for loop, (first, second) in zip((eager, captured), rows, strict=True):
        loop.step([(second, 4), (first, 20)])
    batch = _padded(captured.batch([(row, 1) for row in rows[1]]))
    logits = torch.empty(4, model.geometry.vocab_size)
    replay = device.graph_pool().capture(lambda: logits.copy_(model.logits(model.forward(batch, captured.cache))))
    for _ in range(3):
        expected = eager.step([(row, 1) for row in rows[0]])
        _copy(_padded(captured.batch([(row, 1) for row in rows[1]])), batch)
        replay()
        assert torch.equal(logits[:2], expected)
        for row in rows[1]:
            row.num_computed += 1


def _padded(batch):
    """Two more rows, without keys and values and without states."""
    return InputBatch(
        token_ids=torch.cat([batch.token_ids, torch.zeros(2, dtype=torch.int64)]),
        positions=torch.cat([batch.positions, torch.zeros(2, dtype=torch.int64)]),
        row_starts=torch.arange(5, dtype=torch.int32),
        kv_lens=torch.cat([batch.kv_lens, torch.zeros(2, dtype=torch.int32)]),
        longest=64,
        block_tables=[torch.cat([table, torch.zeros_like(table)]) for table in batch.block_tables],
        slots=[torch.cat([slots, torch.full((2,), -1)]) for slots in batch.slots],
        logit_tokens=torch.arange(4),
        num_decode_rows=4,
    )


def _copy(source, target):
    for field in fields(target):
        pairs = getattr(target, field.name), getattr(source, field.name)
        if isinstance(pairs[0], torch.Tensor):
            pairs[0].copy_(pairs[1])
        elif isinstance(pairs[0], list):
            for one, other in zip(*pairs, strict=True):
                one.copy_(other)

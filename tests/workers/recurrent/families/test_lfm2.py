"""A model with short convolutions: its bits do not depend on chunks, siblings, cached prefixes or instruction sets."""

from pathlib import Path

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.models.loading import load_model, read_model

from ...one_process import OneProcess
from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ...tiny_models.tiny_lfm2 import write_tiny_lfm2
from ..served_alone import SERVER, alone, request, run

MAX_LEN = 256


@pytest.mark.parametrize(
    ("variant", "dtype"), [("lfm2", torch.float32), ("lfm2-states-in-larger-blocks", torch.bfloat16)], ids=str
)
def test_chunks_of_any_size_and_decode_steps_have_the_same_bits(variant, dtype, tmp_path, pools):
    write_checkpoint(variant, tmp_path, dtype)
    prompt = random_tokens(110)
    for pool in pools:
        model = ours(tmp_path, pool=pool)
        whole = PagedLoop(model)
        expected = whole.prefill(whole.row(prompt))
        for chunk in (1, 33):
            loop = PagedLoop(model, seed=chunk)
            assert torch.equal(loop.prefill(loop.row(prompt), chunk), expected), f"chunks of {chunk}"


@pytest.fixture
def model(tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    return ours(write_tiny_lfm2(tmp_path), pool=pool)


def test_a_prefix_hit_starts_from_a_kept_state_and_gives_the_bits_of_no_hit(model):
    process = OneProcess(model, SERVER, num_blocks=64, max_model_len=MAX_LEN)
    assert process.block_size == 32, "the states do not fit into blocks of 16"
    prompt = random_tokens(110)
    first, second = request(prompt), request([*prompt[:90], *random_tokens(20, seed=1)], 2)
    process.add(first)
    assert run(process) == 110
    process.add(second)
    assert run(process) == 110 - 64, "two blocks are cached"
    text = [*prompt, *process.received[1000].token_ids, 5, 6, 7]
    third = request(text, 3)
    process.add(third)
    assert run(process) == 3 + 1, "the next turn starts from the state after the last computed token"
    for one in (first, second, third):
        assert process.received[one.request_id] == alone(model, one, MAX_LEN)[one.request_id]


def test_siblings_start_from_one_kept_state(model):
    process = OneProcess(model, SERVER, num_blocks=64, max_model_len=MAX_LEN)
    several = request(random_tokens(80), n=3, temperature=1.0, seed=11)
    process.add(several)
    assert run(process) == 80 + 2 * 1, "the siblings start from the state before the prompt's last token"
    tokens = [process.received[1000 + index].token_ids for index in range(3)]
    assert len(set(map(tuple, tokens))) == 3
    for index in range(3):
        assert process.received[1000 + index] == alone(model, several, MAX_LEN)[1000 + index]


def test_an_int8_cache_codes_keys_and_values_alone(model):
    prompt, found = random_tokens(90), []
    for chunk in (1000, 33):
        loop = PagedLoop(model, dtype=torch.int8)
        assert loop.block_size == 48, "an area holds half as many bytes per token"
        found.append(loop.prefill(loop.row(prompt), chunk))
    assert torch.equal(*found)
    loop = PagedLoop(model)
    expected = loop.prefill(loop.row(prompt))
    assert 0 < (found[0] - expected).norm() < 0.03 * expected.norm()


def test_a_worker_that_died_computes_the_states_again(model):
    expected = alone(model, request(random_tokens(80)), MAX_LEN)
    process = OneProcess(model, SERVER, num_blocks=64, max_model_len=MAX_LEN)
    process.add(request(random_tokens(80)))
    for _ in range(6):
        for act in (process.plan, process.execute, process.apply, process.read):
            act()
    assert 1 < len(process.received[1000].token_ids) < 12
    process.replace_workers()
    run(process)
    assert process.received == expected


def test_all_instruction_sets_have_the_same_bits(tmp_path):
    if len(isas := cpu.runnable_isas()) < 2:
        pytest.skip("at most one instruction set is built")
    folder, found = write_tiny_lfm2(tmp_path), []
    for isa in isas:
        pool = cpu.Pool(cpu.load_library(isa), [-1], summation="dot")
        loop = PagedLoop(ours(folder, pool=pool))
        found.append(loop.prefill(loop.row(random_tokens(70))))
        pool.close()
    assert all(torch.equal(each, found[0]) for each in found)


def test_cuda_refuses_float32_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    folder, config = write_tiny_lfm2(tmp_path), ModelConfig(device="cuda", dtype="float32")
    with pytest.raises(ConfigError, match="recurrent layers on CUDA must be bfloat16 or float16"):
        load_model(folder, config, TensorParallelGroup(), lambda done, of: None)


def test_channels_must_be_divisible_among_the_ranks(tmp_path):
    _, geometry = read_model(Path(write_tiny_lfm2(tmp_path)), ModelConfig())
    with pytest.raises(ConfigError, match="tensor_parallel_size=3 does not divide"):
        geometry.check_tensor_parallel(3)
    assert geometry.recurrent[0].uneven(3) == "the 64 channels of its convolutions"

"""Mixtures of experts keep the determinism contract, load from every layout, and are refused by name."""

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.checkpoint.safetensors_files import Checkpoint
from paged_serve.workers.kv.budget import SHARE_OF_FREE_MEMORY, expert_rows_bytes, host_budget
from paged_serve.workers.layers.feed_forward import DenseFeedForward
from paged_serve.workers.models import loading

from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, reference
from .contract import PROMPT, WAYS, check_packed_weights, check_ranks_and_isas, check_steps, whole_prompt

ORDERS = [*(("dot", way) for way in WAYS), ("tile", WAYS[0]), ("tile", WAYS[-1])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of a dense layer and two with experts, in four groups, with a shared expert."""
    path = tmp_path_factory.mktemp("experts")
    reference("glm4-moe-wide", path, torch.bfloat16)
    return path


@pytest.mark.parametrize(("summation", "options"), ORDERS, ids=str)
def test_chunks_neighbours_prefix_hits_and_threads_change_no_bit(summation, options, folder):
    check_steps(folder, summation, options)


@pytest.mark.parametrize("options", WAYS, ids=lambda options: next(iter(options.values())))
def test_ranks_and_instruction_sets_have_the_bits_of_one(options, folder, tmp_path):
    check_ranks_and_isas(folder, tmp_path, options)


def test_a_rank_holds_its_own_experts_only(folder, tmp_path, make_pool):
    pool = make_pool() or pytest.skip("the kernels are not built")
    whole = ours(folder, pool=pool).weights_bytes
    held = on_ranks(4, tmp_path / "rendezvous", lambda group: ours(folder, group=group, pool=make_pool()).weights_bytes)
    assert all(size < 0.5 * whole for size in held)


@pytest.mark.parametrize("options", WAYS, ids=lambda options: next(iter(options.values())))
def test_memory_is_reserved_for_the_rows_of_experts_in_the_largest_step(options, folder, make_pool):
    model = ours(folder, pool=make_pool() or pytest.skip("the kernels are not built"), **options)
    whole_prompt(model)
    places = len(PROMPT) * model.geometry.experts[1].top_k
    used = sum(piece.nbytes for piece in model.backend._buffers._pieces.values() if len(piece) >= places)
    reserved = expert_rows_bytes(model.geometry, max_num_batched_tokens=len(PROMPT))
    assert 0.7 * reserved < used <= reserved
    assert host_budget(100 + 2 * reserved, 2, reserved) == int(50 * SHARE_OF_FREE_MEMORY)
    with pytest.raises(ConfigError, match=rf"take {reserved} bytes per rank, but 5 are free; lower max_num_batched"):
        host_budget(10, 2, reserved)
    assert host_budget(0, 2) == 0, "a dense model reserves nothing: the blocks that do not fit are the reason"


def test_packed_weights_are_kept_and_read_again(folder, tmp_path, make_pool):
    check_packed_weights(folder, tmp_path, make_pool() or pytest.skip("the kernels are not built"))


def test_stacked_tensors_are_the_same_model(folder, changed, pools):
    def stack(tensors):
        for layer in (1, 2):
            experts = f"model.layers.{layer}.mlp.experts"
            own = [
                [tensors.pop(f"{experts}.{e}.{name}_proj.weight") for e in range(12)] for name in ("gate", "up", "down")
            ]
            gate, up, down = (torch.stack(each) for each in own)
            tensors[f"{experts}.gate_up_proj"] = torch.cat([gate, up], dim=1)
            tensors[f"{experts}.down_proj"] = down

    stacked = changed(stack)
    for pool in pools:
        for options in ({}, {"quantization": "int8"}):
            one, other = (whole_prompt(ours(path, pool=pool, **options)) for path in (folder, stacked))
            assert torch.equal(one, other)


def test_layers_mix_and_an_expert_without_tokens_is_not_read(folder, changed, pools):
    model = ours(folder, pool=pools[-1])
    assert [isinstance(layer.feed_forward, DenseFeedForward) for layer in model.layers] == [True, False, False]

    def lonely(tensors):
        for layer in (1, 2):
            tensors[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"][5] = -100.0

    def lonely_and_huge(tensors):
        lonely(tensors)
        for layer in (1, 2):
            tensors[f"model.layers.{layer}.mlp.experts.5.down_proj.weight"].fill_(3e38)

    one, other = (whole_prompt(ours(changed(change), pool=pools[-1])) for change in (lonely, lonely_and_huge))
    assert torch.equal(one, other)


def without(name):
    return lambda tensors: tensors.pop(name)


def cut(name):
    def change(tensors):
        tensors[name] = tensors[name][:-1].clone()

    return change


ROUTER, EXPERT = "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.experts.11.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (without(EXPERT), {}, f"no tensor {EXPERT}: config.json says 12 experts"),
        (without(ROUTER), {}, f"no tensor {ROUTER}, the router"),
        (cut(ROUTER), {}, rf"the router {ROUTER} has shape \[11, 128\], but config.json asks for \[12, 128\]"),
        (cut(EXPERT), {}, f"tensor {EXPERT} has shape"),
        (None, {"num_experts_per_tok": 13}, "num_experts_per_tok=13 must be from 1 to the number of experts, 12"),
        (None, {"num_experts_per_tok": 0}, "num_experts_per_tok=0 must be"),
        (None, {"n_group": 5}, "n_group=5 does not divide the 12 experts"),
        (None, {"topk_group": 0}, "topk_group=0 of n_group=4 groups"),
        (None, {"num_experts_per_tok": 7}, "topk_group=2 of n_group=4 groups must hold the num_experts_per_tok=7"),
        (None, {"moe_intermediate_size": 0}, "intermediate size 0"),
    ],
)
def test_what_contradicts_config_json_is_refused_by_name(change, fields, message, changed):
    path = changed(change or (lambda tensors: None), **fields)
    with pytest.raises(ConfigError, match=message):
        ours(path)


def test_missing_experts_are_refused_before_any_file_is_mapped(changed, monkeypatch):
    path = changed(without(EXPERT))
    monkeypatch.setattr(Checkpoint, "_opened", lambda *_: pytest.fail("a file was mapped"))
    with pytest.raises(ConfigError, match="no tensor"):
        ours(path)


def test_experts_are_refused_in_float32_on_cuda_and_by_ranks_that_cannot_share_them(folder, monkeypatch):
    monkeypatch.setattr(loading, "device_of", lambda config: "cuda")
    with pytest.raises(ConfigError, match=r"on CUDA must be bfloat16 or float16, .* use --dtype bfloat16"):
        ours(folder, dtype="float32")
    _, geometry = loading.read_model(folder, ModelConfig(device="cpu"))
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=8 .*experts.*; use one of 1, 2, 4$"):
        geometry.check_tensor_parallel(8)


def test_layers_that_predict_further_tokens_are_not_used(folder, changed, make_pool):
    def with_two_more(tensors):
        for name in [name for name in tensors if name.startswith("model.layers.2.")]:
            tensors |= {name.replace(".2.", f".{layer}.", 1): tensors[name].clone() for layer in (3, 4)}

    path, pool = changed(with_two_more, num_nextn_predict_layers=2), make_pool()
    assert torch.equal(whole_prompt(ours(path, pool=pool)), whole_prompt(ours(folder, pool=pool)))
    with pytest.raises(ConfigError, match=r"tensors that its config\.json does not explain: model\.layers\.4\."):
        ours(changed(with_two_more, num_nextn_predict_layers=1), pool=pool)

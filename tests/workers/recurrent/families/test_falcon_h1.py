"""A model whose layers have attention beside a recurrence: keys, values and a state of one layer are in two groups."""

import json

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_groups import KVGroups
from paged_serve.workers.kv.state_places import StatePlace
from paged_serve.workers.models.registry import read_geometry

from ...one_process import OneProcess
from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..served_alone import SERVER, alone, request, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint("falcon-h1", folder, torch.bfloat16)
    return folder


@pytest.fixture(scope="module")
def model(folder, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    return ours(folder, pool=pool)


def test_a_layer_has_a_place_for_its_keys_and_for_its_state(folder):
    _, geometry = read_geometry(folder)
    layout = CacheLayout.of(geometry, 512, 16)
    assert layout.groups.tensor_of_layer == (0, 1, 2)
    assert [kind.is_state for kind in layout.groups.kinds] == [False, True]
    assert (layout.groups.pairs, layout.groups.of_layer) == (((0, 1),), (2, 2, 2))
    two = KVGroups.of_model(geometry, 512).with_states(geometry, [*layout.groups.places[:2], StatePlace(1, 0)])
    assert (two.pairs, two.of_layer) == (((0, 1), (0, 2)), (3, 3, 4))
    assert two.table_units == (6, 1, 1)


def test_a_worker_that_died_computes_keys_and_states_again(model):
    process = OneProcess(model, SERVER, num_blocks=64, max_model_len=400)
    process.add(request(random_tokens(80)))
    for _ in range(6):
        for act in (process.plan, process.execute, process.apply, process.read):
            act()
    assert 1 < len(process.received[1000].token_ids) < 12
    process.replace_workers()
    run(process)
    assert process.received[1000] == alone(model, request(random_tokens(80)))[1000]


def test_an_int8_cache_codes_keys_and_values_alone(model):
    prompt, found = random_tokens(250), []
    for chunk in (1000, 33):
        loop = PagedLoop(model, dtype=torch.int8)
        found.append(loop.prefill(loop.row(prompt), chunk))
    assert torch.equal(*found)
    loop = PagedLoop(model)
    expected = loop.prefill(loop.row(prompt))
    assert 0 < (found[0] - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_instruction_sets_have_the_same_bits(folder, dtype, isa_pools):
    found = []
    for pool in isa_pools:
        loop = PagedLoop(ours(folder, dtype, pool=pool))
        found.append(loop.prefill(loop.row(random_tokens(150))))
    assert all(torch.equal(each, found[0]) for each in found)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"key_multiplier": 0.0}, r"Expected `float` > 0.0 - at `\$.part_multipliers.key_multiplier`"),
        ({"ssm_multipliers": [1.0, 2.0]}, r"Expected `array` of length 5.*`\$.part_multipliers.ssm_multipliers`"),
        ({"mlp_multipliers": [1.0, "a"]}, r"\$.part_multipliers.mlp_multipliers"),
        ({"lm_head_multiplier": -1}, r"\$.lm_head_multiplier"),
        ({"mamba_d_ssm": 150}, "8 Mamba 2 heads of 20 elements are not the mamba_d_ssm=150 of a layer"),
        ({"mamba_d_state": 20}, "no kernel supports a Mamba 2 state size of 20"),
        ({"attention_bias": True}, "attention_bias=True is not supported for Falcon-H1; only False is"),
        ({"projectors_bias": True}, "projectors_bias=True is not supported for Falcon-H1"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias=True is not supported for Falcon-H1"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu is not supported for Falcon-H1; only silu is"),
    ],
    ids=str,
)
def test_a_field_is_refused_by_name(folder, tmp_path, changed, reason):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | changed))
    with pytest.raises(ConfigError, match=reason):
        read_geometry(tmp_path)


def test_null_fields_have_the_defaults_of_the_format(folder, tmp_path):
    fields = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"key_multiplier": None, "ssm_multipliers": None}))
    _, geometry = read_geometry(tmp_path)
    assert geometry.multipliers.parts.ssm_multipliers == (1.0,) * 5
    assert geometry.multipliers.parts.key_multiplier == 1.0

"""Sparse attention: its cache, its choice of tokens, the determinism contract, and what is refused by name."""

import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.cuda.backend import WITHOUT_INDEXER
from paged_serve.workers.models import loading
from paged_serve.workers.models.families.glm_moe_dsa import index_sources

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from .contract import PROMPT, check_packed_weights, check_steps, whole_prompt

TOP_K = 24  # index_topk: fewer than the tokens of PROMPT
ROW = 48 + 32  # elements of a token in the cache: the latent and its key, then the index key of 20, each padded
INT4 = {"quantization": "int4", "quantization_group_size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sparse")
    write_checkpoint("deepseek-v3.2", path, torch.bfloat16)
    return path


def test_the_cache_has_the_index_key_of_a_token_in_the_row_of_its_latent(folder, pools):
    for pool in pools:
        model = ours(folder, pool=pool)
        cache = PagedLoop(model).cache
        assert [keys.data_ptr() for keys in cache.keys] == [values.data_ptr() for values in cache.values]
        assert cache.keys[0].shape == (64, 1, 16, ROW)
        for size in (1, 2, 4):
            assert model.geometry.kv_bytes_per_block(16, size, torch.bfloat16) == 3 * ROW * 16 * 2


def test_a_choice_of_all_tokens_has_the_bits_of_dense_attention(folder, changed, tmp_path_factory, pools):
    """The same weights as DeepSeek-V3, which has no indexer."""
    sparse, dense = changed(index_topk=len(PROMPT)), tmp_path_factory.mktemp("dense")
    tensors = {name: each for name, each in load_file(sparse / "model.safetensors").items() if "indexer" not in name}
    save_file(tensors, dense / "model.safetensors")
    fields = json.loads((sparse / "config.json").read_text())
    fields = {name: value for name, value in fields.items() if "index" not in name and name != "layer_types"}
    fields |= {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    (dense / "config.json").write_text(json.dumps(fields))
    for pool in pools:
        expected = whole_prompt(ours(dense, pool=pool))
        assert torch.equal(whole_prompt(ours(sparse, pool=pool)), expected)
        found = whole_prompt(ours(folder, pool=pool))
        assert torch.equal(found[:TOP_K], expected[:TOP_K])
        assert not torch.equal(found[TOP_K:], expected[TOP_K:])


@pytest.mark.parametrize("summation", ["dot", "tile"])
@pytest.mark.parametrize(
    "options",
    [{}, INT4, pytest.param({"dtype": "float16"}, marks=pytest.mark.nightly)],
    ids=["bfloat16", "int4", "half"],
)
def test_chunks_neighbours_block_sizes_prefix_hits_and_threads_change_no_bit(summation, options, folder):
    check_steps(folder, summation, options, block_sizes=(16, 32))


def test_torch_takes_each_token_alone(folder, row_variant):
    expected, loop = whole_prompt(ours(folder)), PagedLoop(ours(folder))
    row, other = loop.row(PROMPT), loop.row(random_tokens(60, 1))
    for start, stop in pairwise((0, 30, 31, 60)):
        found = loop.step([(row, stop - start), (other, stop - start)])
        assert torch.equal(found[: stop - start], expected[start:stop])


def test_ranks_have_the_bits_of_one(folder, tmp_path, make_pool):
    expected = whole_prompt(ours(folder, pool=make_pool() or pytest.skip("the kernels are not built")))
    work = lambda group: whole_prompt(ours(folder, group=group, pool=make_pool()))  # noqa: E731
    for found in on_ranks(2, tmp_path / "rendezvous", work):
        assert torch.equal(found, expected)


def test_packed_weights_are_kept_and_read_again(folder, tmp_path, make_pool):
    check_packed_weights(folder, tmp_path, make_pool() or pytest.skip("the kernels are not built"))


@pytest.mark.parametrize(
    ("fields", "sources"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"index_topk_freq": 1, "index_skip_topk_offset": None}, [0, 1, 2, 3, 4, 5]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, 2, 2, 2]),
        ({"index_topk_freq": 2}, [0, 1, 1, 3, 3, 5]),
        ({"index_topk_freq": 0}, [0, 1, 2, 3, 4, 5]),
        ({"index_topk_freq": 2, "index_topk_pattern": "FSSFSF"}, [0, 0, 0, 3, 3, 5]),
        ({"index_topk_pattern": "FFFFFF", "indexer_types": ["full", "shared"] * 3}, [0, 0, 2, 2, 4, 4]),
    ],
)
def test_a_layer_shares_the_choice_of_the_last_one_with_an_indexer(fields, sources):
    assert index_sources({"num_hidden_layers": 6} | fields) == sources
    from transformers import GlmMoeDsaConfig

    kinds = GlmMoeDsaConfig(num_hidden_layers=6, **fields).indexer_types if None not in fields.values() else None
    assert kinds in (None, ["full" if source == layer else "shared" for layer, source in enumerate(sources)])


INDEXER = "model.layers.1.self_attn.indexer"


def without(name):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (without(f"{INDEXER}.wk.weight"), {}, f"no tensor {INDEXER}.wk.weight"),
        (without(f"{INDEXER}.weights_proj.weight"), {}, f"no tensor {INDEXER}.weights_proj.weight"),
        (without(f"{INDEXER}.k_norm.bias"), {}, f"no tensor {INDEXER}.k_norm.bias"),
        (
            None,
            {"index_n_heads": 15},
            r"indexer.wq_b.weight has shape \[320, 40\], but config.json asks for \[300, 40\]",
        ),
        (None, {"index_head_dim": 24}, "indexer.wq_b.weight has shape .*index_head_dim in sparse attention"),
        (None, {"index_topk": 0}, "index_topk=0 must be at least 1"),
        (None, {"index_topk": "all"}, "index_topk"),
        (None, {"index_n_heads": 0}, "index_n_heads=0 must be at least 1"),
        (None, {"index_head_dim": 12}, "index_head_dim=12 must be at least qk_rope_head_dim=16"),
        (None, {"index_head_dim": 1000}, "index_head_dim=1000 must be at most 1024 together"),
        (None, {"q_lora_rank": None}, "index_topk needs a q_lora_rank"),
        (None, {"indexer_rope_interleave": True}, "indexer_rope_interleave=True is not supported for DeepSeek-V3.2"),
        (None, {"rope_interleave": False}, "rope_interleave=False is not supported for DeepSeek-V3.2"),
        (None, {"layer_types": ["sliding_attention"] * 3}, "layer_types has 'sliding_attention'"),
    ],
)
def test_what_contradicts_config_json_is_refused_by_name(change, fields, message, changed):
    with pytest.raises(ConfigError, match=message):
        ours(changed(change or (lambda tensors: None), **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"indexer_types": ["shared", "full"]},
        {"indexer_types": "FX"},
        {"indexer_types": 3},
        {"index_topk_freq": "often"},
        {"index_skip_topk_offset": 1.5},
        {"index_topk_freq": 3, "index_skip_topk_offset": -1},
    ],
    ids=str,
)
def test_kinds_of_indexers_that_are_none_are_refused(fields):
    with pytest.raises(ConfigError, match="index"):
        index_sources({"num_hidden_layers": 2} | fields)


def test_it_is_refused_on_cuda(folder, monkeypatch):
    monkeypatch.setattr(loading, "device_of", lambda config: "cuda")
    with pytest.raises(ConfigError) as refused:
        ours(folder)
    assert str(refused.value) == WITHOUT_INDEXER

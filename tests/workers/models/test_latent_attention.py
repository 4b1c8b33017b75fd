"""Latent attention: its cache, the determinism contract, and what is refused by name."""

import json

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig
from paged_serve.workers.backends.cuda.backend import WITHOUT_LATENT
from paged_serve.workers.checkpoint.safetensors_files import Checkpoint
from paged_serve.workers.kv.budget import cache_dtype
from paged_serve.workers.models import loading

from ..invariance.workloads.random_workload import LATENT
from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import (
    ours,
    reference,
    reference_logits,
    transformers_model,
    write_checkpoint,
)
from ..tiny_models.quantized_checkpoints import write_quantized
from ..tiny_models.tiny_model import write_tiny_model
from .contract import PROMPT, WAYS, check_packed_weights, check_ranks_and_isas, check_steps, whole_prompt

FAST = ("bfloat16", "float16", "dot-bfloat16", "dot-int8", "tile-bfloat16")


def case(*values):
    """A parameter with a short name; those that are not FAST are nightly."""
    name = "-".join(value if isinstance(value, str) else next(iter(value.values())) for value in values)
    return pytest.param(*values, id=name, marks=() if name in FAST else pytest.mark.nightly)


CACHED = 48  # elements of a token in the cache: kv_lora_rank=32 and qk_rope_head_dim=16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("latent")
    write_checkpoint("deepseek-v2", path, torch.bfloat16)
    return path


def test_the_cache_has_one_vector_for_each_token_on_every_rank(folder, tmp_path, pools):
    for pool in pools:
        model = ours(folder, pool=pool)
        cache = PagedLoop(model).cache
        assert [keys.data_ptr() for keys in cache.keys] == [values.data_ptr() for values in cache.values]
        assert cache.keys[0].shape == (64, 1, 16, CACHED)
        for size in (1, 2, 4):
            assert model.geometry.kv_bytes_per_block(16, size, torch.bfloat16) == 3 * CACHED * 16 * 2


@pytest.mark.parametrize(("summation", "options"), [case(order, way) for order in ("dot", "tile") for way in WAYS])
def test_chunks_neighbours_decode_steps_prefix_hits_and_threads_change_no_bit(summation, options, folder):
    check_steps(folder, summation, options)


@pytest.mark.parametrize("options", [case(way) for way in WAYS])
def test_ranks_and_instruction_sets_have_the_bits_of_one(options, folder, tmp_path):
    check_ranks_and_isas(folder, tmp_path, options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_more_accurate_than_in_transformers(dtype, tmp_path, pools):
    """The median of errors: a token whose experts differ from the exact model's is far off in both."""
    exact = reference_logits(reference("deepseek-v3", tmp_path, dtype), PROMPT)
    theirs = reference_logits(transformers_model(tmp_path, dtype), PROMPT)
    for pool in pools:
        found = whole_prompt(ours(tmp_path, pool=pool))
        assert (found - exact).abs().median() < (theirs - exact).abs().median()


def test_packed_weights_are_kept_and_read_again(folder, tmp_path, make_pool):
    check_packed_weights(folder, tmp_path, make_pool() or pytest.skip("the kernels are not built"))


@pytest.mark.parametrize("name", ["gptq-asymmetric", "gptq-desc-act", "awq"])
def test_a_quantized_checkpoint_is_the_float_model_of_its_codes(name, tmp_path, make_pool):
    sizes = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 16}
    (tmp_path / "source").mkdir()
    write_tiny_model(tmp_path / "source", torch.float16, **LATENT | sizes)
    write_quantized(tmp_path / "source", tmp_path / "quantized", name)
    for pool, dtype, tolerance in ((None, "float32", 1e-5), (make_pool(), "float16", 0.05)):
        found, expected = (
            whole_prompt(ours(tmp_path / end, dtype, pool=pool)) for end in ("quantized", "quantized-float")
        )
        assert (found - expected).abs().max() < tolerance * expected.abs().max()


def test_layers_that_predict_further_tokens_are_not_used(folder, changed, pools):
    def with_two_more(tensors):
        for name in [name for name in tensors if name.startswith("model.layers.2.")]:
            tensors |= {name.replace(".2.", f".{layer}.", 1): tensors[name].clone() for layer in (3, 4)}
        tensors["model.layers.3.eh_proj.weight"] = torch.zeros(4, 4)

    more = changed(with_two_more, num_nextn_predict_layers=2)
    for pool in pools:
        one, other = (whole_prompt(ours(path, pool=pool)) for path in (folder, more))
        assert torch.equal(one, other)


def test_rope_parameters_as_published_are_the_same_model(folder, changed, pools):
    """The published files have `rope_scaling` with a `type`, and neither head_dim nor qk_head_dim."""
    config = json.loads((folder / "config.json").read_text())
    rope = dict(config["rope_parameters"])
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    published = changed(rope_parameters=None, rope_scaling={"type": kind, **rope}, rope_theta=theta, head_dim=None)
    for pool in pools:
        one, other = (whole_prompt(ours(path, pool=pool)) for path in (folder, published))
        assert torch.equal(one, other)


def test_an_int8_cache_is_refused_by_name(folder, pools):
    config = Config(model=ModelConfig(model=str(folder)), cache=CacheConfig(kv_cache_dtype="int8"))
    for pool in pools:
        with pytest.raises(ConfigError, match="kv_cache_dtype=int8 is not supported for latent attention; use"):
            cache_dtype(config, ours(folder, pool=pool))


def test_it_is_refused_in_float32_on_cuda(folder, monkeypatch):
    monkeypatch.setattr(loading, "device_of", lambda config: "cuda")
    with pytest.raises(ConfigError, match=WITHOUT_LATENT):
        ours(folder, dtype="float32")


def without(name):
    return lambda tensors: tensors.pop(name)


def cut(name):
    def change(tensors):
        tensors[name] = tensors[name][:-1].clone()

    return change


LAYER = "model.layers.1.self_attn"
UP, DOWN = f"{LAYER}.kv_b_proj.weight", f"{LAYER}.kv_a_proj_with_mqa.weight"


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (without(UP), {}, f"no tensor {UP}, a projection of latent attention"),
        (without(DOWN), {}, f"no tensor {DOWN}"),
        (without(f"{LAYER}.q_a_proj.weight"), {}, "no tensor .*q_a_proj"),
        (without(f"{LAYER}.o_proj.weight"), {}, "no tensor .*o_proj"),
        (cut(UP), {}, rf"{UP} has shape \[175, 32\], but config.json asks for \[176, 32\]"),
        (cut(DOWN), {}, rf"{DOWN} has shape \[47, 128\]"),
        (None, {"v_head_dim": 21}, "kv_b_proj.weight has shape .*v_head_dim must be the checkpoint's"),
        (None, {"q_lora_rank": None}, "no tensor model.layers.0.self_attn.q_proj.weight"),
        (None, {"q_lora_rank": 0}, "q_lora_rank=0 must be at least 1, or null"),
        (None, {"kv_lora_rank": 0}, "kv_lora_rank=0 must be at least 1"),
        (None, {"qk_nope_head_dim": -1}, "qk_nope_head_dim=-1 must be at least 1"),
        (None, {"v_head_dim": 0}, "v_head_dim=0 must be at least 1"),
        (None, {"qk_rope_head_dim": 15}, "qk_rope_head_dim=15 must be even"),
        (None, {"kv_lora_rank": 1024}, "kv_lora_rank=1024 and qk_rope_head_dim=16 must be at most 1024 together"),
        (None, {"kv_lora_rank": "wide"}, "kv_lora_rank"),
        (None, {"qk_rope_head_dim": "wide"}, "qk_rope_head_dim"),
        (None, {"topk_method": "noaux_tc"}, "topk_method='noaux_tc' is not supported for DeepSeek-V2"),
        (None, {"scoring_func": "sigmoid"}, "scoring_func=sigmoid is not supported for DeepSeek-V2"),
        (None, {"attention_bias": True}, "attention_bias=True is not supported for DeepSeek-V2"),
        (None, {"moe_layer_freq": 2}, "moe_layer_freq=2 is not supported for DeepSeek-V2"),
    ],
)
def test_what_contradicts_config_json_is_refused_by_name_before_a_file_is_mapped(
    change, fields, message, changed, monkeypatch
):
    path = changed(change or (lambda tensors: None), **fields)

    def mapped(*arguments, **options):
        raise AssertionError("a file was mapped")

    monkeypatch.setattr(Checkpoint, "read", mapped)
    with pytest.raises(ConfigError, match=message):
        ours(path)


def test_heads_that_ranks_cannot_share_are_refused(tmp_path):
    write_checkpoint("deepseek-v3", tmp_path)
    _, geometry = loading.read_model(tmp_path, ModelConfig())
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=8 .*; use one of 1, 2, 4"):
        geometry.check_tensor_parallel(8)


@pytest.mark.parametrize("kinds", [["dense", "odd"], "dense", [0]], ids=str)
def test_kinds_of_layers_that_are_neither_dense_nor_sparse_are_refused(kinds, tmp_path):
    write_checkpoint("glm4-moe-lite", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mlp_layer_types": kinds}))
    with pytest.raises(ConfigError, match=r"mlp_layer_types=.* must be a list of dense and sparse"):
        ours(tmp_path)

"""A GGUF file of each architecture has the bits of the folder that it is made of."""

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import read_gguf
from paged_serve.workers.checkpoint.gguf.gguf_checkpoint import open_checkpoint

from ... import gguf_gated_delta
from ...gguf_files import Type, blocks_of, write_gguf
from ...gguf_gated_delta import tiled
from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import VARIANTS, ours, random_tokens, write_checkpoint
from ..tiny_models.made_mtp import made as made_mtp

MULTIPLIED = {"mscale": 0.7, "mscale_all_dim": 0.7}
LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
MINICPM3_ROPE = VARIANTS["minicpm3"]["rope_parameters"] | {"rope_theta": 10000.0}
MISTRAL4_ROPE = VARIANTS["mistral4"]["rope_parameters"] | MULTIPLIED
MISTRAL4_ROPE |= {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LAGUNA = {  # the first of four layers has full attention
    "num_hidden_layers": 5,
    "num_attention_heads_per_layer": (4, 8, 8, 8, 4),
    "layer_types": ("full_attention", *["sliding_attention"] * 3, "full_attention"),
}
FIELDS = {  # that files cannot have otherwise
    "afmoe": {"global_attn_every_n_layers": 4},
    "cohere-qk-norm": {"tie_word_embeddings": True},
    "dots1": {"sliding_window": None},
    "gpt-neox-in-turn": {"hidden_act": "gelu"},
    "glm": {"head_dim": 16, "rms_norm_eps": 1e-5},
    "granite-swa": {"rope_parameters": ROPE, "layer_rope_theta": (10000.0, 0, 10000.0)},
    "granitemoe-swa": {"rope_parameters": ROPE, "layer_rope_theta": (10000.0, 0, 10000.0)},
    "deepseek-v3.2": {"rope_parameters": VARIANTS["deepseek-v3.2"]["rope_parameters"] | MULTIPLIED},
    "laguna": LAGUNA,
    "mellum": {"mlp_layer_types": ("sparse",) * 3},
    "minimax": dict.fromkeys(("full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor"), 1.0),
    "mpt-clipped": {"attn_config": {"clip_qkv": 0.7}},
    "youtu": {"rope_parameters": VARIANTS["youtu"]["rope_parameters"] | MULTIPLIED},
    "hunyuan": {"rope_parameters": VARIANTS["hunyuan"]["rope_parameters"] | {"rope_theta": 10000.0}},
    "hunyuan-moe": {"rope_parameters": ROPE},
    "llama4": LLAMA4 | {"no_rope_layers": (1, 1, 1, 0, 1)},
    "llama4-experts": LLAMA4 | {"no_rope_layers": (1, 1, 1, 0)},
    "minicpm3": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "rope_parameters": MINICPM3_ROPE},
    "phimoe": {"router_jitter_noise": 0.01},
    "deepseek-v2": {"rope_parameters": VARIANTS["deepseek-v2"]["rope_parameters"] | MULTIPLIED},
    "deepseek-v3": {"rope_parameters": VARIANTS["deepseek-v3"]["rope_parameters"] | MULTIPLIED},
    "mistral4": {"rope_parameters": MISTRAL4_ROPE},
    "falcon-two-norms": {"bias": False},
    "granite4-dense": {"position_embedding_type": "nope"},
    "mamba": {"intermediate_size": 128},
    "mamba2-biased": {"time_step_limit": (0.0, float("inf"))},
    "smollm3": {"no_rope_layers": (1, 1, 1, 0)},
}
OFTEN = ("glm4", "glm4-moe", "deepseek-v2", "deepseek-v3", "granite", "granitemoe", "smollm3", "olmo3", "cohere2")
OFTEN += ("exaone4", "starcoder2", "stablelm-qk-norm", "nemotron", "falcon-two-norms", "gpt2", "bloom")
OFTEN += ("lfm2", "granite4", "jamba", "mamba2", "gemma3n", "gemma4", "gemma4-experts")
OFTEN += ("qwen3.5", "qwen3.5-moe", "qwen3-next", "kimi-linear", "ministral3", "mistral4")
OFTEN += (
    "nemotron-h",
    "minimax-m2",
    "ernie4.5-moe",
    "hunyuan",
    "hunyuan-moe",
    "llama4-experts",
    "cohere2-moe",
    "dots1",
)
OFTEN += ("hy-v3", "laguna", "mellum", "mimo-v2", "granitemoe-swa", "minimax", "bailing-hybrid", "glm-5", "mpt-clipped")
SELDOM = ("granite-swa", "granitemoeshared", "deepseek-v3.2", "jais2", "mpt", "solar-open", "youtu")
OFTEN += ("dbrx", "afmoe", "exaone-moe", "phimoe", "minicpm3", "apertus")
SELDOM += ("deepseek-v2-lite", "olmo", "olmo2", "exaone4-full", "cohere", "cohere-qk-norm", "seed-oss", "stablelm")
SELDOM += ("nemotron-biased", "arcee", "falcon", "falcon-one-norm", "gpt-bigcode", "gpt-neox", "gpt-neox-in-turn")
SELDOM += ("granite4-dense", "jamba-dense", "mamba", "mamba2-biased", "gemma4-keys-as-values")
SELDOM += ("nemotron-h-dense", "ernie4.5", "llama4", "glm")
PROMPT = random_tokens(48)


def logits(folder, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT))


@pytest.mark.parametrize("variant", [*OFTEN, *(pytest.param(each, marks=pytest.mark.nightly) for each in SELDOM)])
def test_logits_are_those_of_the_folder(variant, tmp_path, make_pool):
    folder = tmp_path / "folder"
    write_checkpoint(variant, folder, torch.bfloat16, FIELDS.get(variant))
    made, pool = make_folder(write_gguf(folder, tmp_path / "model.gguf"), tmp_path / "made"), make_pool()
    assert torch.equal(logits(made, pool=pool), logits(folder, pool=pool))


@pytest.mark.parametrize("rows", [199, 180])  # of tokens with inputs of their own: all, or most
def test_inputs_of_layers_in_blocks_have_the_values_of_the_blocks(rows, tmp_path, pools):
    folder, name = tmp_path / "folder", "model.embed_tokens_per_layer.weight"
    sizes = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": rows}
    write_checkpoint("gemma3n", folder, torch.bfloat16, sizes)
    kind = lambda each, tensor: Type.Q8_0 if each == name else None  # noqa: E731
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf", kind), tmp_path / "made")
    tensors = load_file(folder / "model.safetensors")
    values = gguf.dequantize(blocks_of(Type.Q8_0, tensors[name].float()), Type.Q8_0)
    save_file(tensors | {name: torch.from_numpy(values.copy()).bfloat16()}, folder / "model.safetensors")
    for pool in pools:
        model = ours(made, pool=pool)
        assert ("Q8_0" in model.quantization.get("quantization", "")) == (rows == 199 and pool is not None)
        loop = PagedLoop(model)
        assert torch.equal(loop.prefill(loop.row(PROMPT)), logits(folder, pool=pool))


def test_latent_attention_in_blocks_has_the_values_of_its_blocks(tmp_path):
    folder = tmp_path / "folder"
    write_checkpoint("deepseek-v2-lite", folder, torch.float32, {"kv_lora_rank": 32, "qk_nope_head_dim": 32})

    def kind(name, tensor):
        return Type.Q8_0 if "k_b_proj" in name or "v_b_proj" in name else Type.F32

    files = [write_gguf(folder, tmp_path / f"{at}.gguf", each) for at, each in enumerate((kind, None))]
    blocks, exact = (logits(make_folder(file, tmp_path / "made")) for file in files)
    assert 0 < (blocks - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("value_dim", [32, 16])  # whole blocks, and half ones
def test_columns_of_value_heads_are_in_their_order_though_files_have_them_in_blocks(value_dim, tmp_path):
    folder, name = tmp_path / "folder", "model.layers.0.linear_attn.out_proj.weight"
    write_checkpoint("qwen3.5", folder, torch.float32, {"linear_value_head_dim": value_dim})
    kind = lambda each, tensor: Type.Q8_0 if "out_proj" in each else None  # noqa: E731
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf", kind), tmp_path / "made")
    exact = load_file(folder / "model.safetensors")[name]
    columns = tiled(torch.arange(exact.shape[1]), 4, value_dim)
    blocks = blocks_of(Type.Q8_0, exact[:, columns])
    expected = torch.empty_like(exact)
    expected[:, columns] = torch.from_numpy(gguf.dequantize(blocks, Type.Q8_0).copy())
    checkpoint = open_checkpoint(made, torch.float32)
    assert torch.equal(checkpoint.read(name, tuple(exact.shape)), expected)
    half = exact.shape[1] // 2
    assert torch.equal(checkpoint.read(name, tuple(exact.shape), 1, half), expected[:, half:])
    assert checkpoint.format_of(name) == ("Q8_0" if value_dim == 32 else "")
    if value_dim == 32:
        found, _ = checkpoint.blocks(name, tuple(exact.shape), 1, half, exact.shape[1])
        values = gguf.dequantize(found.flatten(1).numpy(), Type.Q8_0)
        assert torch.equal(torch.from_numpy(values.copy()), expected[:, half:])


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3-next"])
def test_a_layer_for_multi_token_prediction_has_the_values_of_the_folder(family, tmp_path):
    made = made_mtp(family, tmp_path / "folder")
    folder = make_folder(write_gguf(made.folder, tmp_path / "model.gguf"), tmp_path / "made")
    checkpoint = open_checkpoint(folder, torch.bfloat16)
    further = {name: each for name, each in load_file(made.folder / "model.safetensors").items() if "mtp." in name}
    assert further
    for name, expected in further.items():
        if "experts.gate_up" not in name and not name.endswith("experts.down_proj"):
            assert torch.equal(checkpoint.read(name, tuple(expected.shape)).to(expected.dtype), expected), name
    assert torch.equal(logits(folder), logits(made.folder))


@pytest.mark.parametrize("family", ["hy-v3", "mimo-v2", "bailing-hybrid"])
def test_a_layer_for_multi_token_prediction_that_the_family_does_not_use_is_left_out(family, tmp_path):
    folder, longer = tmp_path / "folder", tmp_path / "longer"
    for each in (folder, longer):
        write_checkpoint(family, each, torch.bfloat16)
    tensors, layers = load_file(folder / "model.safetensors"), VARIANTS[family].get("num_hidden_layers", 3)
    further = {f"blk.{layers}.{name}.weight": torch.ones(64, 64).bfloat16() for name in ("nextn.eh_proj", "attn_q")}
    save_file(tensors | further, longer / "model.safetensors")
    counts = {"block_count": layers + 1, "nextn_predict_layers": 1}
    made = make_folder(write_gguf(longer, tmp_path / "model.gguf", **counts), tmp_path / "made")
    assert torch.equal(logits(made), logits(folder))


def test_older_files_of_qwen3_next_have_the_first_projection_by_key_head(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_gated_delta, "_by_part", lambda name, tensor, config: {name: tensor})
    folder = tmp_path / "folder"
    write_checkpoint("qwen3-next", folder, torch.bfloat16)
    file = write_gguf(folder, tmp_path / "model.gguf")
    assert "blk.0.ssm_in.weight" in read_gguf(file).tensors
    assert torch.equal(logits(make_folder(file, tmp_path / "made")), logits(folder))


def test_chatglm_may_have_queries_keys_and_values_in_one_matrix(tmp_path):
    folder, fused = tmp_path / "folder", tmp_path / "fused"
    write_checkpoint("glm", folder, torch.bfloat16, FIELDS["glm"] | {"attention_bias": True})
    write_checkpoint("glm", fused, torch.bfloat16, FIELDS["glm"] | {"attention_bias": True})
    tensors = load_file(folder / "model.safetensors")
    for name in [each for each in tensors if ".q_proj." in each]:
        layer, kind = name.split(".")[2], name.rpartition(".")[2]
        parts = [tensors.pop(name.replace("q_proj", f"{each}_proj")) for each in "qkv"]
        tensors[f"encoder.layers.{layer}.self_attention.query_key_value.{kind}"] = torch.cat(parts)
    save_file(tensors, fused / "model.safetensors")
    made = make_folder(write_gguf(fused, tmp_path / "model.gguf"), tmp_path / "made")
    assert torch.equal(logits(made), logits(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssm__group_count": 3}, r"ssm.group_count=3, time_step_rank=8, .* are no sizes of a gated delta net"),
        ({"ssm__inner_size": 64}, r"tensor blk.0.\w+.weight .* needs \d+, not \d+"),
    ],
)
def test_sizes_of_value_heads_that_tensors_do_not_have_are_refused(changes, message, tmp_path):
    folder = tmp_path / "folder"
    write_checkpoint("qwen3.5", folder, torch.bfloat16)
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf", **changes), tmp_path / "made")
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(made, torch.bfloat16)

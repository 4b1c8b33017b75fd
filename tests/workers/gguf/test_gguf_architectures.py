"""A GGUF file of each architecture has the bits of the folder that it is made of."""

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.frontend.gguf.folder import make_folder

from ...gguf_files import Type, blocks_of, write_gguf
from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import VARIANTS, ours, random_tokens, write_checkpoint

MULTIPLIED = {"mscale": 0.7, "mscale_all_dim": 0.7}
FIELDS = {  # that files cannot have otherwise
    "deepseek-v2": {"rope_parameters": VARIANTS["deepseek-v2"]["rope_parameters"] | MULTIPLIED},
    "deepseek-v3": {"rope_parameters": VARIANTS["deepseek-v3"]["rope_parameters"] | MULTIPLIED},
    "falcon-two-norms": {"bias": False},
    "granite4-dense": {"position_embedding_type": "nope"},
    "mamba": {"intermediate_size": 128},
    "mamba2-biased": {"time_step_limit": (0.0, float("inf"))},
    "smollm3": {"no_rope_layers": (1, 1, 1, 0)},
}
OFTEN = ("glm4", "glm4-moe", "deepseek-v2", "deepseek-v3", "granite", "granitemoe", "smollm3", "olmo3", "cohere2")
OFTEN += ("exaone4", "starcoder2", "stablelm-qk-norm", "nemotron", "falcon-two-norms", "gpt2", "bloom")
OFTEN += ("lfm2", "granite4", "jamba", "mamba2", "gemma3n", "gemma4", "gemma4-experts")
SELDOM = ("deepseek-v2-lite", "olmo", "olmo2", "exaone4-full", "cohere", "cohere-qk-norm", "seed-oss", "stablelm")
SELDOM += ("nemotron-biased", "arcee", "falcon", "falcon-one-norm", "gpt-bigcode", "gpt-neox", "gpt-neox-in-turn")
SELDOM += ("granite4-dense", "jamba-dense", "mamba", "mamba2-biased", "gemma4-keys-as-values")
PROMPT = random_tokens(48)


def logits(folder, **options):
    loop = PagedLoop(ours(folder, **options))
    return loop.prefill(loop.row(PROMPT))


@pytest.mark.parametrize("variant", [*OFTEN, *(pytest.param(each, marks=pytest.mark.nightly) for each in SELDOM)])
def test_logits_are_those_of_the_folder(variant, tmp_path):
    folder = tmp_path / "folder"
    write_checkpoint(variant, folder, torch.bfloat16, FIELDS.get(variant))
    made = make_folder(write_gguf(folder, tmp_path / "model.gguf"), tmp_path / "made")
    assert torch.equal(logits(made), logits(folder))


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

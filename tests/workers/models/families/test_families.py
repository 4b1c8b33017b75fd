"""Every family agrees with transformers."""

from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.workers.models.catalogue import FAMILIES

from ...paged_loop import PagedLoop
from ...tiny_models.checkpoints import (
    VARIANTS,
    ours,
    random_tokens,
    reference,
    reference_continues,
    reference_logits,
    transformers_model,
    write_checkpoint,
)


def nightly(*variants):
    return [pytest.param(variant, marks=pytest.mark.nightly) for variant in variants]


# Every third one also on torch, which takes as long as all the rest; nightly all.
WITH_TORCH = tuple(VARIANTS)[::3]
CASES = [
    *(pytest.param(variant, False, id=variant) for variant in VARIANTS if variant not in WITH_TORCH),
    *(
        pytest.param(variant, True, id=f"{variant}-torch", marks=[] if variant in WITH_TORCH else [pytest.mark.nightly])
        for variant in VARIANTS
    ),
]


@pytest.mark.parametrize(("variant", "by_torch"), CASES)
def test_float32_logits_agree_with_transformers(variant, by_torch, tmp_path, pools):
    expected_model = reference(variant, tmp_path)
    prompt = random_tokens(150)
    expected = reference_logits(expected_model, prompt)
    for pool in pools if by_torch else pools[-1:]:
        loop = PagedLoop(ours(tmp_path, pool=pool))
        length, chunk = (40, 24) if pool is None else (150, 64)  # torch takes token by token
        found = loop.prefill(loop.row(prompt[:length]), chunk)
        assert (found - expected[:length]).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.long_in_software  # portable logits are compared above, and decode steps with chunks in invariance/
@pytest.mark.parametrize(
    "variant",
    [
        "llama-3.1",
        "mistral-sliding",
        "qwen3",
        "gemma2",
        *("gemma3n", "gemma4"),
        *nightly("bloom", "llama4", "qwen2-moe", "nemotron-h"),
        *nightly("qwen2-upper-layers-slide", "opt-untied-gelu", "gpt2-relu-untied", "phi3", "gpt-neox", "nemotron"),
        *nightly("starcoder2-plain-sliding", "granite", "smollm3"),
        "lfm2",
        "deepseek-v2",
        *nightly("deepseek-v2-lite", "deepseek-v3", "deepseek-v3-halves", "glm4-moe-lite", "minicpm3", "mistral4"),
        *nightly("deepseek-v3.2", "glm-5"),
        "mamba2",
        "qwen3-next",
        *nightly("mamba", "granite4", "falcon-h1", "qwen3.5", "qwen3.5-moe", "olmo-hybrid", "kimi-linear"),
        *nightly("minimax", "bailing-hybrid", "diffllama-grouped", "jetmoe"),
        *nightly("mamba-biased", "falcon-mamba", "jamba", "jamba-dense"),
        *nightly("falcon-h1-with-norms", "falcon-h1-gated-first"),
        *nightly("granite4-dense", "bamba", "lfm2-states-in-larger-blocks", "nemotron-h-dense"),
        *nightly("lfm2-moe", "glm4-moe-wide", "cohere2-moe", "cohere2-moe-sum"),
        *nightly("mixtral", "qwen3-moe", "olmoe", "phimoe", "granitemoe", "glm4-moe", "llama4-experts", "gpt-oss"),
        *nightly(
            "glm4", "helium", "seed-oss", "llama4-chunks-of-whole-blocks", "nemotron-biased", "arcee", "mpt-clipped"
        ),
        *nightly("stablelm-qk-norm", "phi-qk-norm", "cohere-qk-norm", "olmo-clipped"),
        *nightly("gpt-neo", "codegen", "gpt-neox-in-turn", "gptj", "falcon-two-norms", "phi", "stablelm", "cohere"),
        *nightly("cohere2", "olmo", "olmo2", "olmo3", "glm", "exaone4", "phi3-partial"),
        *nightly("apertus1p5", "lara-mini", "zamba2-rotated", "biogpt"),
        *nightly("apertus", "laguna", "mimo-v2", "longcat-flash", "persimmon", "xglm", "dbrx", "modernbert-decoder"),
        *nightly("flint", "mllama", "phi4-multimodal", "cohere-compass", "bitnet", "aria", "kolibri1", "axk1"),
    ],
)
@pytest.mark.parametrize(("num_tokens", "by_torch"), [(130, 20), pytest.param(256, 80, marks=pytest.mark.nightly)])
def test_greedy_text_agrees_with_transformers(variant, num_tokens, by_torch, tmp_path, pools):
    """The text is longer than a window and two tiles of keys; what torch computes of it, which is slow, than a window
    and nightly than two tiles."""
    model, prompt = reference(variant, tmp_path), random_tokens(70)
    text = PagedLoop(ours(tmp_path, pool=pools[-1])).greedy(prompt, num_tokens, chunk=48)
    for pool in pools[:-1]:
        assert PagedLoop(ours(tmp_path, pool=pool)).greedy(prompt, by_torch, chunk=48) == text[:by_torch]
    assert reference_continues(model, prompt, text)
    assert len(set(text)) > 7, "the text repeats itself, so equality proves little"


HALF_EARLY = (
    *("llama-3.1", "mistral-sliding", "gpt2", "gemma3", "gemma4", "gemma3n", "bloom", "cohere", "lfm2", "granite4"),
    "falcon-h1",
    "falcon-mamba",  # without its norms, random weights exceed float16
)
HALF_NIGHTLY = (
    *("qwen2-yarn", "qwen3", "opt-untied-gelu", "granite", "gemma4-keys-as-values", "gpt-neox", "olmo2", "gemma2"),
    *("bamba", "granite4-dense", "jamba-dense", "falcon-h1-with-norms"),
    *("codegen", "gpt-neox-in-turn", "gptj", "phi", "stablelm"),
    *("falcon", "falcon-two-norms", "falcon-in-turn"),
    *("stablelm-parallel", "cohere2", "olmo", "olmo3", "glm", "glm4", "exaone4"),
    *("llama4", "nemotron", "arcee", "stablelm-qk-norm", "phi-qk-norm", "cohere-qk-norm", "mpt"),
    "apertus",
    *("apertus1p5", "lara-mini"),
    "persimmon-without-norms",
    "xglm",
    "biogpt",
    "modernbert-decoder",
    "diffllama-grouped",
)
# One of the two dtypes makes the fast run, in turn.
HALVES = [
    pytest.param(
        variant,
        dtype,
        id=f"{variant}-{dtype}",
        marks=[] if variant in HALF_EARLY and place % 2 == number else [pytest.mark.nightly],
    )
    for place, variant in enumerate(HALF_EARLY + HALF_NIGHTLY)
    for number, dtype in enumerate((torch.bfloat16, torch.float16))
]


@pytest.mark.parametrize(("variant", "dtype"), HALVES)
def test_half_precision_is_more_accurate_than_in_transformers(variant, dtype, tmp_path, pools):
    """Both round products of the same weights to the same dtype. Ours rounds less often, because norms, rotation,
    softmax and the gate are computed in float32, so the error of transformers is a bound. Some prompts are
    lucky there, most are not."""
    exact, theirs = reference(variant, tmp_path, dtype), transformers_model(tmp_path, dtype)
    models = [ours(tmp_path, pool=pool) for pool in pools]
    assert all(model.dtype == dtype for model in models)
    ratios = [[] for _ in pools]
    for seed in range(5):
        prompt = random_tokens(60, seed)
        exact_logits, their_logits = reference_logits(exact, prompt), reference_logits(theirs, prompt)
        for of_pool, model in zip(ratios, models, strict=True):
            loop = PagedLoop(model)
            found = loop.prefill(loop.row(prompt))
            of_pool.append(float((found - exact_logits).norm() / (their_logits - exact_logits).norm()))
    assert max(map(median, ratios)) < 1


@pytest.mark.parametrize("variant", ["opt-350m", *nightly("gpt-neo", "openai-gpt")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_as_accurate_as_in_transformers(variant, dtype, tmp_path, pools):
    """Ours rounds no less often: with post-norms each norm and the last projection round the residual in both, and
    transformers computes GPT-Neo's scores in float32, too."""
    prompt = random_tokens(120)
    exact = reference_logits(reference(variant, tmp_path, dtype), prompt)
    half_logits = reference_logits(transformers_model(tmp_path, dtype), prompt)
    for pool in pools:
        loop = PagedLoop(ours(tmp_path, pool=pool))
        found = loop.prefill(loop.row(prompt))
        assert (found - exact).square().mean() < 1.2 * (half_logits - exact).square().mean()


def test_layers_whose_heads_are_all_of_the_other_size_agree_with_transformers(tmp_path, pools):
    """As of a Gemma 4 without windows: `head_dim` and `num_key_value_heads` are those of no layer."""
    fields = {"layer_types": ("full_attention",) * 2, "num_hidden_layers": 2}
    write_checkpoint("gemma4-keys-as-values", tmp_path, fields=fields)
    prompt = random_tokens(60)
    expected = reference_logits(transformers_model(tmp_path), prompt)
    for pool in pools:
        loop = PagedLoop(ours(tmp_path, pool=pool))
        torch.testing.assert_close(loop.prefill(loop.row(prompt)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", ["gpt2-relu-untied", "phi3", "gpt-neox", "phi"])
def test_matrices_of_another_layout_are_quantized_on_load(variant, tmp_path, pools):
    write_checkpoint(variant, tmp_path)
    for pool in pools:
        loops = [PagedLoop(ours(tmp_path, pool=pool, quantization=kind)) for kind in ("auto", "int8")]
        exact, found = (loop.prefill(loop.row(random_tokens(40))) for loop in loops)
        assert 0 < (found - exact).norm() < 0.1 * exact.norm()  # with a wrong layout it would be more than 1


def test_each_architecture_has_its_line_on_the_page_of_models():
    root = Path(__file__).parents[4]
    page = (root / "docs/models.md").read_text().partition("### Models that also read")[0]
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(name for family in FAMILIES for name in family.architectures)
    assert f"[{len(listed)} architectures](docs/models.md)" in (root / "README.md").read_text()


def test_a_checkpoint_in_shards_is_the_same_model(tmp_path):
    write_checkpoint("qwen2", tmp_path / "one")
    write_checkpoint("qwen2", tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    logits = []
    for name in ("one", "shards"):
        loop = PagedLoop(ours(tmp_path / name))
        logits.append(loop.prefill(loop.row(random_tokens(40))))
    assert torch.equal(*logits)


@pytest.mark.parametrize("variant", ["opt", "opt-350m", "gpt2", "qwen3"])
def test_names_of_a_checkpoint_saved_without_its_head_lack_the_prefix(variant, tmp_path):
    write_checkpoint(variant, tmp_path)
    loop = PagedLoop(ours(tmp_path))
    expected = loop.prefill(loop.row(random_tokens(40)))
    file = tmp_path / "model.safetensors"
    tensors = {name.partition(".")[2]: tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file)
    loop = PagedLoop(ours(tmp_path))
    assert torch.equal(loop.prefill(loop.row(random_tokens(40))), expected)


def test_a_wanted_dtype_overrides_the_checkpoints(tmp_path):
    write_checkpoint("llama", tmp_path, torch.bfloat16)
    assert ours(tmp_path).dtype == torch.bfloat16
    assert ours(tmp_path, "float32").dtype == torch.float32
    assert ours(tmp_path, "float16").layers[0].mixer.qkv.weight.dtype == torch.float16

"""Quantized checkpoints in published formats: the outputs equal those of a float model with the dequantized weights."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.checkpoint.matrix_reader import MatrixPart
from paged_serve.workers.checkpoint.safetensors_files import Checkpoint
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.layers.linear import JoinedLinear
from paged_serve.workers.quantization.source import matrix_source

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import ours, random_tokens, reference_logits, transformers_model, write_checkpoint
from ..tiny_models.quantized_checkpoints import (
    FORMATS,
    W8A8,
    WEIGHT_ONLY,
    dequantized,
    edit,
    write_folder,
    write_quantized,
)

PROMPT = random_tokens(40)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Float models to quantize: with biases and an untied head, with a tied head, with a head_dim of their own."""
    folders = {name: tmp_path_factory.mktemp("source") for name in ("qwen2", "llama-3.1", "qwen3", "llama-even")}
    for name, folder in folders.items():
        write_checkpoint(name, folder)
    return folders


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "quantized"


def logits(folder, dtype="float32", **options):
    loop = PagedLoop(ours(folder, dtype, **options))
    return loop.prefill(loop.row(PROMPT), chunk=48)


@pytest.mark.parametrize("source", ["qwen2", "llama-3.1", "qwen3"])
@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_weight_only_formats_equal_the_float_model_of_their_codes(name, source, sources, folder):
    write_quantized(sources[source], folder, name)
    assert torch.equal(logits(folder), logits(folder.with_name("quantized-float")))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["ct-w4a16", "gptq-desc-act", "awq"])
def test_half_precision_rounds_the_weights_once(name, dtype, sources, folder):
    write_quantized(sources["qwen3"], folder, name)
    assert torch.equal(logits(folder, dtype), logits(folder.with_name("quantized-float"), dtype))


@pytest.mark.parametrize("name", W8A8)
def test_w8a8_is_the_float_model_with_activations_rounded_per_token(name, sources, folder):
    """The reference is transformers' float model of the codes, with the inputs of projections rounded to 8 bits. Ours
    differs from it by less than a tenth of what that rounding changes."""
    rounded = rounded_per_token_to_e4m3 if "fp8" in name else rounded_per_token
    write_quantized(sources["qwen3"], folder, name)
    model = transformers_model(folder.with_name("quantized-float"))
    plain = reference_logits(model, PROMPT)
    for module_name, module in model.named_modules():
        if module_name.endswith("_proj") and not module_name.endswith("o_proj"):
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]),))
    expected, found = reference_logits(model, PROMPT), logits(folder)
    assert (found - expected).square().mean() < 0.01 * (found - plain).square().mean()


def rounded_per_token(x):
    step = x.abs().amax(-1, keepdim=True) / 127
    return (x / step).round() * step


def rounded_per_token_to_e4m3(x):
    step = x.abs().amax(-1, keepdim=True) / 448
    return (x / step).to(torch.float8_e4m3fn).float() * step


@pytest.mark.parametrize("name", ["ct-fp8", "ct-fp8-tensor"])
def test_the_cpu_kernels_hold_fp8_as_floats(name, sources, folder, make_pool):
    if make_pool() is None:
        pytest.skip("the kernels are not built")
    write_quantized(sources["qwen3"], folder, name)
    found = logits(folder, pool=make_pool())
    assert torch.equal(found, logits(folder.with_name("quantized-float"), pool=make_pool()))
    facts = ours(folder, "float32", pool=make_pool()).quantization
    assert "fp8 held as float" in facts["quantization"]


def test_projections_of_different_activation_order_stay_separate(sources, folder):
    write_quantized(sources["qwen2"], folder, "gptq-desc-act")
    write_quantized(sources["qwen2"], folder.with_name("plain"), "gptq")
    mixed = load_file(folder / "model.safetensors")
    plain = load_file(folder.with_name("plain") / "model.safetensors")
    mixed |= {name: tensor for name, tensor in plain.items() if "k_proj" in name or "up_proj" in name}
    save_file(mixed, folder / "model.safetensors")
    model = ours(folder, "float32")
    assert isinstance(model.layers[0].mixer.qkv, JoinedLinear)
    assert len(model.layers[0].mixer.qkv.parts) == 3
    assert len(model.layers[0].feed_forward.gate_up.parts) == 2
    floats = load_file(folder.with_name("quantized-float") / "model.safetensors")
    plain_floats = load_file(folder.with_name("plain-float") / "model.safetensors")
    floats |= {name: tensor for name, tensor in plain_floats.items() if "k_proj" in name or "up_proj" in name}
    save_file(floats, folder.with_name("quantized-float") / "model.safetensors")
    difference = logits(folder) - logits(folder.with_name("quantized-float"))
    assert difference.abs().max() < 1e-4


def test_a_projection_that_is_not_quantized_is_read_unchanged(sources, folder):
    write_quantized(sources["qwen2"], folder, "gptq")
    stored = load_file(folder / "model.safetensors")
    floats = load_file(folder.with_name("quantized-float") / "model.safetensors")
    for kind in ("qweight", "qzeros", "scales", "g_idx"):
        stored.pop(f"model.layers.1.self_attn.v_proj.{kind}")
    stored["model.layers.1.self_attn.v_proj.weight"] = floats["model.layers.1.self_attn.v_proj.weight"]
    save_file(stored, folder / "model.safetensors")
    assert (logits(folder) - logits(folder.with_name("quantized-float"))).abs().max() < 1e-4


def test_experts_in_one_tensor_are_no_target_of_linear_modules(folder, tmp_path):
    write_checkpoint("granitemoe", tmp_path / "experts")
    write_quantized(tmp_path / "experts", folder, "ct-w4a16")  # those of attention
    assert torch.equal(logits(folder), logits(folder.with_name("quantized-float")))


def test_a_quantized_output_head_is_read_too(sources, folder):
    source, head = sources["qwen2"], "lm_head"
    write_quantized(source, folder, "ct-w4a16")
    packed, meant = FORMATS["ct-w4a16"].pack(load_file(source / "model.safetensors")[f"{head}.weight"].float())
    for which, tensors in (("quantized", {f"{head}.{kind}": part for kind, part in packed.items()}), ("float", {})):
        path = (folder if which == "quantized" else folder.with_name("quantized-float")) / "model.safetensors"
        stored = load_file(path)
        stored.pop(f"{head}.weight")
        save_file(stored | (tensors or {f"{head}.weight": meant}), path)
    edit(folder, {"ignore": []})
    assert torch.equal(logits(folder), logits(folder.with_name("quantized-float")))


@pytest.mark.parametrize("name", ["gptq-channel", "ct-w4a16-channel", "ct-w8a8", "ct-w8a16", "gptq-8-channel"])
def test_two_ranks_hold_the_shares_of_one(name, sources, folder):
    """Each rank has 48 of the 96 inputs of the down projection, which share one scale per output."""
    write_quantized(sources["qwen3"], folder, name)
    whole = ours(folder, "float32").layers[0]
    ranks = [ours(folder, "float32", TensorParallelGroup(rank, 2)).layers[0] for rank in range(2)]
    for find in (lambda layer: layer.feed_forward.down, lambda layer: layer.mixer.output):
        shares = [dequantized(find(layer).share) for layer in ranks]
        assert torch.equal(torch.cat(shares, dim=1), dequantized(find(whole)))
    query, key, value = dequantized(whole.mixer.qkv).split([128, 64, 64])
    for rank, layer in enumerate(ranks):
        expected = torch.cat([part.chunk(2)[rank] for part in (query, key, value)])
        assert torch.equal(dequantized(layer.mixer.qkv), expected)


@pytest.mark.parametrize("name", ["gptq", "gptq-asymmetric", "awq", "ct-w4a16", "ct-w4a16-asymmetric"])
def test_ranks_hold_whole_groups_or_none(name, sources, folder):
    write_quantized(sources["llama-even"], folder, name)
    down = dequantized(ours(folder, "float32").layers[0].feed_forward.down)
    ranks = [ours(folder, "float32", TensorParallelGroup(rank, 2)).layers[0] for rank in range(2)]
    assert torch.equal(torch.cat([dequantized(layer.feed_forward.down.share) for layer in ranks], dim=1), down)
    if name != "awq":  # its output projection is not quantized
        complaint = r"o_proj is quantized in groups of 32 inputs, but a rank's share is inputs 0 to 16; .* 64 inputs"
        with pytest.raises(ConfigError, match=complaint):
            ours(folder, "float32", TensorParallelGroup(0, 4))


@pytest.mark.parametrize("name", FORMATS)
def test_shares_may_begin_anywhere_in_a_word_of_the_file(name, sources, folder):
    write_quantized(sources["qwen3"], folder, name)
    checkpoint = Checkpoint(folder)
    reader = matrix_source(folder, checkpoint, ModelConfig(), torch.float32).projections
    projection, shape = "model.layers.0.mlp.down_proj", (64, 96)
    whole = reader.read(projection, MatrixPart(shape, 0, 0, 64)).dequantized()
    assert torch.equal(reader.read(projection, MatrixPart(shape, 0, 5, 43)).dequantized(), whole[5:43])
    if "desc-act" not in name and name != "ct-w4a16-actorder":
        first, last = (13, 51) if "channel" in name or name in W8A8 else (32, 96)
        share = reader.read(projection, MatrixPart(shape, 1, first, last))
        assert torch.equal(share.dequantized(), whole[:, first:last])


def test_outputs_need_not_fill_the_words_of_zero_points(tmp_path):
    packed, meant = FORMATS["ct-w4a16-asymmetric"].pack(torch.randn(20, 96, generator=torch.Generator().manual_seed(0)))
    how = {"architectures": [], "quantization_config": FORMATS["ct-w4a16-asymmetric"].config}
    write_folder(tmp_path / "odd", {f"model.a_proj.{ending}": part for ending, part in packed.items()}, how)
    checkpoint = Checkpoint(tmp_path / "odd")
    reader = matrix_source(tmp_path / "odd", checkpoint, ModelConfig(), torch.float32).projections
    assert torch.equal(reader.read("model.a_proj", MatrixPart((20, 96), 0, 0, 20)).dequantized(), meant)
    assert torch.equal(reader.read("model.a_proj", MatrixPart((20, 96), 0, 3, 19)).dequantized(), meant[3:19])


def test_an_unset_activation_order_is_ignored(sources, folder):
    write_quantized(sources["qwen3"], folder, "ct-w4a16")
    stored = load_file(folder / "model.safetensors")
    for name in [name for name in stored if name.endswith("weight_packed")]:
        inputs = 8 * stored[name].shape[1]
        stored[name.replace("weight_packed", "weight_g_idx")] = torch.full((inputs,), -1, dtype=torch.int32)
    save_file(stored, folder / "model.safetensors")
    assert torch.equal(logits(folder), logits(folder.with_name("quantized-float")))


def test_ranks_cannot_share_groups_in_activation_order(sources, folder):
    write_quantized(sources["qwen3"], folder, "gptq-desc-act")
    with pytest.raises(ConfigError, match=r"o_proj was quantized in activation order.*tensor_parallel_size=1"):
        ours(folder, group=TensorParallelGroup(1, 2))


def test_zero_biases_of_old_gptq_files_are_skipped_and_others_refused(sources, folder):
    write_quantized(sources["qwen3"], folder, "gptq")
    stored = load_file(folder / "model.safetensors")
    extra = "model.layers.0.mlp.down_proj.bias"
    save_file(stored | {extra: torch.zeros(64)}, folder / "model.safetensors")
    assert torch.equal(logits(folder), logits(folder.with_name("quantized-float")))
    save_file(stored | {extra: torch.ones(64)}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"{extra} is not zero, but config.json describes a model without it"):
        ours(folder)


def test_a_zero_point_of_zero_is_stored_as_minus_one(sources, folder):
    write_quantized(sources["qwen3"], folder, "gptq-asymmetric")
    edit(folder, qzeros=lambda zeros: torch.full_like(zeros, -1))
    linear = ours(folder, "float32").layers[0].feed_forward.down
    assert float(linear.dequantized().min()) == 0.0


@pytest.mark.parametrize(
    ("begins", "ignored"),
    [
        ("language_model.", ["lm_head", "re:model.language_model.*o_proj$", "re:model.vision_tower.*"]),
        ("language_model.", ["language_model.lm_head", "re:language_model.*o_proj$"]),
        ("language_model.", ["re:.*lm_head", "re:.*o_proj"]),
        ("model.language_model.", ["language_model.lm_head", "re:^language_model.model.*o_proj$"]),
    ],
)
def test_modules_of_a_text_part_are_ignored_by_their_names_of_any_release(begins, ignored, sources, folder):
    """Names of modules changed between releases of transformers, and files keep those of tensors."""
    write_quantized(sources["llama-even"], folder, "ct-w8a8")
    expected = logits(folder)
    stored = load_file(folder / "model.safetensors")
    names = {"model.": begins if begins.startswith("model.") else f"{begins}model."}
    names["lm_head."] = "lm_head." if begins.startswith("model.") else f"{begins}lm_head."
    renamed = {names[f"{name.partition('.')[0]}."] + name.partition(".")[2]: each for name, each in stored.items()}
    save_file(renamed, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    quantization = text.pop("quantization_config") | {"ignore": ignored}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text | {"model_type": "llama"}}
    whole |= {"tie_word_embeddings": False, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(whole))
    assert torch.equal(logits(folder), expected)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gptq", {"checkpoint_format": None, "lm_head": None, "dynamic": None}),
        ("gptq-v2-asymmetric", {"checkpoint_format": None, "format": "gptq_v2"}),
        ("awq", {"version": None, "zero_point": None, "modules_to_not_convert": None}),
    ],
)
def test_null_settings_count_as_absent_and_a_format_has_either_name(name, fields, sources, folder):
    write_quantized(sources["qwen3"], folder, name)
    edit(folder, fields)
    assert torch.equal(logits(folder), logits(folder.with_name("quantized-float")))


def test_the_settings_file_of_old_gptq_folders_is_read(sources, folder):
    write_quantized(sources["qwen3"], folder, "gptq")
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"no tensor model\.layers\.0\.self_attn\.q_proj\.weight"):
        ours(folder)
    settings.pop("quant_method")
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    assert torch.equal(logits(folder), logits(folder.with_name("quantized-float")))

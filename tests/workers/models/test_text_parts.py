"""Models that also read images or audio are served by their text parts."""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.backends.torch.backend import TorchBackend
from paged_serve.workers.checkpoint.text_part import WHOLE_MODELS
from paged_serve.workers.models.registry import read_geometry
from paged_serve.workers.quantization.config_reader import read_quantization_config

from ..adapters.loaded import adapted, load, step_of
from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens, randomise, write_checkpoint
from ..tiny_models.made_adapters import PREFIX, MadeAdapter, make_adapter, write_merged
from ..tiny_models.text_part_variants import (
    CONFORMER,
    EXPERTS,
    LATENT,
    PATCHES,
    SOUND_TOKENS,
    TEXT,
    VARIANTS,
)

HEARING = ("Voxtral", "Qwen2Audio", "Qwen2_5OmniThinker", "Qwen3OmniMoeThinker")
PROMPT = random_tokens(100)


def renamed(folder, names):
    """Rename the tensors of `folder`: each beginning in `names` becomes the other."""
    tensors, path = load_file(folder / "model.safetensors"), folder / "model.safetensors"
    for old, new in names.items():
        tensors = {re.sub(f"^{old}", new, name): each for name, each in tensors.items()}
    save_file(tensors, path, {"format": "pt"})


def without_images(module):
    """Let the model have no part for images, which needs a library that the tests do not have."""
    made = module.AutoModel.from_config
    if not hasattr(made, "is_changed"):

        def from_config(config):
            return torch.nn.Module() if config.model_type.endswith("_vision") else made(config)

        from_config.is_changed = True
        module.AutoModel = type("AutoModel", (), {"from_config": staticmethod(from_config)})


def make(name, folder, **changes):
    """Write a random model of the variant, with `changes` of its text part, to `folder`.

    Returns its logits for PROMPT, [tokens, vocab] float32.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        text, other = VARIANTS[name]
        text = text | changes
        beside = {"audio_config" if name in HEARING else "vision_config": other}
        if "Thinker" in name:
            beside |= {"vision_config": PATCHES}
        if name == "Apertus1p5":
            beside |= {"audio_config": SOUND_TOKENS, "image_token_offset": 207, "audio_token_offset": 223}
        if name == "Gemma3n":
            beside |= {"audio_config": CONFORMER}
            without_images(transformers.models.gemma3n.modeling_gemma3n)
        config = getattr(transformers, f"{name}Config")(text_config=TEXT | text, **beside)
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
        randomise(model)
        model.save_pretrained(folder)
        if name == "Kimi_K25":  # transformers writes layers of text as if they were of images
            renamed(folder, {"language_model.model.blocks.": "language_model.model.layers."})
        whole = model.language_model if name == "Llama4" else model  # Llama 4's output lacks a field without images
        with torch.inference_mode():
            return whole(torch.tensor([PROMPT])).logits[0]


def logits(folder, **options):
    loop = PagedLoop(ours(folder, **{"backend": TorchBackend()} | options))
    return loop.prefill(loop.row(PROMPT), chunk=64)


def agree(found, expected):
    return (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", VARIANTS)
def test_float32_logits_of_text_agree_with_transformers(name, tmp_path):
    expected = make(name, tmp_path)
    assert agree(logits(tmp_path), expected)


MISTRAL4 = LATENT | EXPERTS | {"qk_nope_head_dim": 8}  # half of a head is rotated


@pytest.mark.parametrize(("kind", "fields"), [("ministral3", {}), ("mistral4", MISTRAL4)])
def test_one_architecture_may_have_text_parts_of_several_kinds(kind, fields, tmp_path):
    expected = make("Mistral3", tmp_path, model_type=kind, **fields)
    assert agree(logits(tmp_path), expected)


def test_every_architecture_is_compared_with_transformers_and_has_its_place_on_the_page_of_models():
    root = Path(__file__).parents[3]
    page = (root / "docs/models.md").read_text().partition("### Models that also read")[2]
    cells = [line.split("|")[1] for line in page.partition("**Mixtures")[0].splitlines() if line.startswith("| `")]
    listed = {name for cell in cells for name in cell.split("`")[1::2] if not name.endswith("Model")}
    speaking = {"Qwen2_5Omni", "Qwen3OmniMoe"}  # they hold a thinker
    names = {f"{name}ForConditionalGeneration" for name in listed | {f"{each}Thinker" for each in speaking}}
    assert names | {"Kimi_K25ForConditionalGeneration", "Qwen2_5OmniModel"} == WHOLE_MODELS.keys()
    assert f"text of {len(listed)} that also read" in (root / "README.md").read_text()
    assert listed - speaking | {"Kimi_K25"} == {name for name in VARIANTS if "Thinker" not in name} | {"KimiK25"}


BOTH = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
PUBLISHED = {
    "Mllama": BOTH | {"model.vision_model.": "vision_model."},
    "Mistral3": BOTH | {"model.vision_tower.": "vision_tower."},
    "Qwen2_5_VL": {"model.language_model.": "model.", "model.visual.": "visual."},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_of_tensors_are_those_of_published_files_too(name, tmp_path):
    expected = make(name, tmp_path)
    before = load_file(tmp_path / "model.safetensors").keys()
    renamed(tmp_path, PUBLISHED[name])
    other = {new: old for old, new in PUBLISHED[name].items()}
    if load_file(tmp_path / "model.safetensors").keys() == before:  # it was saved with these
        renamed(tmp_path, other)
    assert load_file(tmp_path / "model.safetensors").keys() != before
    assert agree(logits(tmp_path), expected)


ADAPTED = ("qkv_proj.weight", "o_proj.weight", "gate_up_proj.weight", "down_proj.weight")


def test_adapters_for_images_in_files_of_phi4_multimodal_change_no_text(tmp_path, pool):
    base, published = tmp_path / "base", tmp_path / "published"
    for folder in (base, published):
        write_checkpoint("phi4-multimodal", folder)
    tensors = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if is_adapted := name.startswith("model.layers.") and name.endswith(ADAPTED):
            tensors |= {f"{module}.lora_A.vision.weight": torch.ones(4, 4)}
        tensors[f"{module}.base_layer.weight" if is_adapted else name] = tensor
    save_file(tensors, published / "model.safetensors", {"format": "pt"})
    assert any("lora_A.vision" in name for name in tensors)
    fields = json.loads((published / "config.json").read_text())
    (published / "config.json").write_text(json.dumps(fields | {"architectures": ["Phi4MMForCausalLM"]}))
    assert torch.equal(logits(published), logits(base))
    adapter = make_adapter(tmp_path / "adapter", base, targets=("layers.1.self_attn.qkv_proj",))
    ways = [PagedLoop(step_of(adapted(each, [MadeAdapter(adapter.folder, {})], pool), 1)) for each in (base, published)]
    found, expected = (loop.prefill(loop.row(PROMPT)) for loop in ways)
    assert torch.equal(found, expected)
    assert not agree(found, logits(base))


def test_fields_of_text_may_be_beside_those_of_other_parts(tmp_path):
    expected = make("Qwen2_5_VL", tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    text = fields.pop("text_config")
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "rope_theta": 1e4}
    del text["rope_parameters"]
    path.write_text(json.dumps(text | rope | fields))
    assert agree(logits(tmp_path), expected)


@pytest.mark.parametrize("whole", ["Qwen2_5OmniModel", "Qwen3OmniMoeForConditionalGeneration"])
def test_a_model_that_speaks_is_served_by_what_reads_and_writes_in_it(whole, tmp_path):
    expected = make("Qwen2_5OmniThinker" if "2_5" in whole else "Qwen3OmniMoeThinker", tmp_path)
    renamed(tmp_path, {"": "thinker."})
    tensors = load_file(tmp_path / "model.safetensors") | {"talker.model.embed_tokens.weight": torch.ones(9, 9)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    fields = json.loads((tmp_path / "config.json").read_text())
    fields = {"architectures": [whole], "thinker_config": fields, "talker_config": {"hidden_size": 9}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert agree(logits(tmp_path), expected)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_stacked_experts_are_read_in_either_order(is_transposed, tmp_path):
    expected = make("Qwen3VLMoe", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, stacked in tensors.items():
        if name.endswith("down_proj") and (stacked.shape[1] == 24) != is_transposed:
            tensors[name] = stacked.transpose(1, 2).contiguous()
        if name.endswith("gate_up_proj") and (stacked.shape[2] == 48) != is_transposed:
            tensors[name] = stacked.transpose(1, 2).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert agree(logits(tmp_path), expected)


def test_quantization_settings_may_be_inside_those_of_text(tmp_path):
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    write_config(tmp_path, "KimiK25ForConditionalGeneration", TEXT | {"quantization_config": settings})
    found = read_quantization_config(tmp_path)
    assert found is not None
    assert (found[0], found[1].bits) == ("gptq", 4)


PEFT_NAMES = {"as in the file": {}, "as in older versions": BOTH}


@pytest.mark.parametrize("names", PEFT_NAMES.values(), ids=PEFT_NAMES)
def test_an_adapter_changes_the_text_part_alone(names, tmp_path, pool):
    base, adapter_folder = tmp_path / "base", tmp_path / "adapter"
    make("Llava", base)
    targets = ("layers.0.self_attn.q_proj", "layers.1.mlp.down_proj", "fc1")  # fc1: of images
    adapter = make_adapter(adapter_folder, base, targets=targets)
    merged = load(write_merged(tmp_path / "merged", base, adapter), pool)
    path = adapter_folder / "adapter_model.safetensors"
    tensors = load_file(path)
    for old, new in names.items():
        tensors = {name.replace(f"{PREFIX}{old}", f"{PREFIX}{new}"): each for name, each in tensors.items()}
    save_file(tensors, path)
    assert any("vision" in name for name in tensors)
    found = PagedLoop(step_of(adapted(base, [MadeAdapter(adapter_folder, {})], pool), 1))
    loop = PagedLoop(merged)
    expected = loop.prefill(loop.row(PROMPT))
    assert agree(found.prefill(found.row(PROMPT)), expected)
    assert not agree(logits(base), expected)


def test_what_an_adapter_changes_in_layers_with_cross_attention_has_no_effect_on_text(tmp_path, pool):
    base = tmp_path / "base"
    make("Mllama", base)  # layers 1 and 2 have cross-attention
    targets = ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj", "layers.3.self_attn.q_proj", "cross_attn.q_proj")
    adapter = make_adapter(tmp_path / "adapter", base, targets=targets)
    merged = PagedLoop(load(write_merged(tmp_path / "merged", base, adapter), pool))
    found = PagedLoop(step_of(adapted(base, [MadeAdapter(adapter.folder, {})], pool), 1))
    expected = merged.prefill(merged.row(PROMPT))
    assert agree(found.prefill(found.row(PROMPT)), expected)
    assert not agree(logits(base), expected)


def test_an_unchanged_head_that_peft_saved_is_that_of_a_tied_text_part(tmp_path, pool):
    make("Gemma3", tmp_path / "base")
    adapter = make_adapter(tmp_path / "adapter", tmp_path / "base", targets=("layers.0.self_attn.q_proj",))
    path = adapter.folder / "adapter_model.safetensors"
    stored = load_file(tmp_path / "base" / "model.safetensors")
    table = next(each for name, each in stored.items() if name.endswith("embed_tokens.weight"))
    save_file(load_file(path) | {f"{PREFIX}lm_head.base_layer.weight": table.clone()}, path)
    adapted(tmp_path / "base", [MadeAdapter(adapter.folder, {})], pool)


@pytest.mark.parametrize("name", ["Qwen3VLMoe", "Gemma4", "Mllama"])
def test_two_ranks_have_the_bits_of_one(name, tmp_path, make_pool):
    make(name, tmp_path / "model")
    pools = [make_pool(), make_pool()]

    def on_rank(group):
        return logits(tmp_path / "model", group=group, backend=None, pool=pools[group.rank])

    alone = logits(tmp_path / "model", backend=None, pool=pools[0])
    for found in on_ranks(2, tmp_path / "rendezvous", on_rank):
        assert torch.equal(found, alone)


def write_config(folder: Path, name: str, text: object, **fields: object) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": [name], "text_config": text, **fields}))


def test_published_files_leave_fields_to_the_defaults_of_the_format(tmp_path):
    rope = {"factor": 8.0, "rope_type": "linear"}
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    text |= {"rope_scaling": rope, "sliding_window": 1024}
    write_config(tmp_path, "Gemma3ForConditionalGeneration", text, eos_token_id=[1, 106], torch_dtype="bfloat16")
    _, geometry = read_geometry(tmp_path)
    assert (geometry.family, geometry.num_heads, geometry.num_kv_heads, geometry.head_dim) == ("gemma3", 8, 4, 256)
    assert (geometry.vocab_size, geometry.dtype, geometry.eos_token_ids) == (262208, torch.bfloat16, (1, 106))
    assert [rope.factor for rope in geometry.ropes[4:6]] == [1.0, 8.0]


def test_what_the_whole_model_says_of_its_tables_and_dtype_counts(tmp_path):
    text = TEXT | {"tie_word_embeddings": True, "dtype": "float32", "eos_token_id": 2}
    whole = {"tie_word_embeddings": False, "dtype": "float16", "eos_token_id": 7}
    write_config(tmp_path, "LlavaForConditionalGeneration", text, **whole)
    _, geometry = read_geometry(tmp_path)
    assert (geometry.tie_word_embeddings, geometry.dtype, geometry.eos_token_ids) == (False, torch.float16, (7,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"model_type": "bark"}, "text_config.model_type='bark' is not supported in LlavaForConditionalGeneration"),
        ({"model_type": ["llama"]}, r"text_config.model_type=\['llama'\] is not supported"),
        ([], r"text_config=\[\] must be an object"),
        ({"model_type": "llama", "hidden_size": 0}, "hidden_size=0 must be at least 1"),
    ],
)
def test_a_text_part_that_cannot_be_served_is_refused_by_its_field(text, message, tmp_path):
    write_config(tmp_path, "LlavaForConditionalGeneration", text)
    with pytest.raises(ConfigError, match=message):
        read_geometry(tmp_path)


def test_a_tensor_of_the_text_part_that_nothing_explains_is_refused(tmp_path):
    make("Gemma3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    inside = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight"))
    tensors[inside.replace("up_proj", "side_proj")] = tensors[inside].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers.1.mlp.side_proj.weight"):
        ours(tmp_path)

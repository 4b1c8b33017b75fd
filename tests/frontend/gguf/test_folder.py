"""A GGUF file becomes a model folder, or is refused in one line that names what is not supported."""

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from paged_serve.frontend.config.model_folder import find_model_folder
from paged_serve.frontend.gguf.fields.architectures import ARCHITECTURES
from paged_serve.frontend.gguf.fields.config_fields import config_fields
from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.block_formats import BLOCK_FORMATS
from paged_serve.protocol.gguf.container import GgufTensor, read_gguf
from paged_serve.workers.checkpoint.gguf.names import TENSOR_LAYOUTS
from paged_serve.workers.models.registry import read_geometry

from ...gguf_files import byte_tokenizer
from .gguf_models import model_of

SIZES = {
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 48,
    "block_count": 1,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A file of one matrix; `changes` are keys with "__" for dots, None to leave one out."""
    writer = gguf.GGUFWriter(path, architecture)
    keys: dict[str, Any] = {f"{architecture}.{key}": value for key, value in SIZES.items()}
    keys |= {f"tokenizer.{key}": value for key, value in byte_tokenizer(280).items()}
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    for key, value in keys.items():
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((280, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_frontend_and_worker_know_the_same_architectures():
    assert ARCHITECTURES.keys() == TENSOR_LAYOUTS.keys()


def test_the_folder_has_what_the_file_says(tmp_path):
    more = {"general__sampling__temp": 0.7, "general__sampling__top_k": 20, "general__sampling__penalty_repeat": 1.1}
    templates = {"tokenizer__chat_template": TEMPLATE, "tokenizer__chat_template__tool_use": "tools"}
    file = write(tmp_path / "some model.gguf", **more, **templates)
    folder = make_folder(file, tmp_path / "made")
    assert (folder / "model.gguf").resolve() == file
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    assert (folder / "additional_chat_templates/tool_use.jinja").read_text() == "tools"
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {
        "eos_token_id": [2, 0],
        "temperature": 0.7,
        "top_k": 20,
        "repetition_penalty": 1.1,
    }
    _, geometry = read_geometry(folder)
    assert (geometry.hidden_size, geometry.vocab_size, geometry.eos_token_ids) == (32, 280, (2, 0))
    tokenizer = Tokenizer(str(folder))
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert tokenizer.decode(tokenizer.encode("the <|im_end|> 東"), False) == "the <|im_end|> 東"


def test_a_folder_is_made_once_and_again_for_other_contents(tmp_path):
    root, file = tmp_path / "made", tmp_path / "model.gguf"
    first = make_folder(write(file), root)
    stamp = (first / "config.json").stat().st_mtime_ns
    assert make_folder(file, root) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    assert make_folder(write(file, llama__context_length=128), root) != first
    assert first.stat().st_mode & 0o077 == 0
    file.unlink()
    other = make_folder(write(tmp_path / "other.gguf"), root)
    assert list(root.iterdir()) == [other]  # those of the file that is gone are removed


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("clip", {}, "vision or audio part of a model (mmproj)"),
        ("rwkv7", {}, "architecture 'rwkv7' is not supported; supported: llama, qwen2"),
        ("llama", {"llama__embedding_scale": 2.0}, "llama.embedding_scale=2.0 is not supported"),
        ("llama", {"llama__attention__sliding_window": 63}, "llama.attention.sliding_window=63 is not supported"),
        ("llama", {"llama__some__new_key": [1, 2]}, "llama.some.new_key=[1, 2] is not supported"),
        ("llama", {"llama__nextn_predict_layers": 1}, "block_count=1 must be above nextn_predict_layers=1"),
        ("glm4", {"glm4__rope__dimension_sections": [4, 2, 2, 0]}, "rope.dimension_sections, the rotation of GLM-4V"),
        ("olmo2", {"olmo2__attention__sliding_window": 8, "olmo2__rope__freq_base_swa": 5.0}, "rope.freq_base_swa=5"),
        ("llama", {"general__type": "adapter"}, "general.type is 'adapter'"),
        ("qwen3", {"qwen3__expert_count": 8}, "mixture of 8 experts"),
        ("llama", {"llama__expert_count": 8}, "no llama.expert_used_count"),
        ("llama", {"llama__expert_count": 8, "llama__expert_used_count": 9}, "expert_used_count=9 of expert_count=8"),
        ("llama", {"llama__block_count": None}, "no llama.block_count"),
        ("llama", {"llama__attention__head_count": 0}, "must be at least 1"),
        ("llama", {"llama__attention__head_count_kv": [1, 2]}, "must be a whole number"),
        ("llama", {"llama__attention__value_length": 4}, "16 elements a head and values 4"),
        (
            "llama",
            {"llama__feed_forward_length": [64, 32], "llama__block_count": 2},
            "feed_forward_length=[32, 64] must be one size",
        ),
        ("llama", {"llama__feed_forward_length": [float("nan")]}, "feed_forward_length=[nan] must have a size"),
        ("llama", {"llama__rope__dimension_count": 8}, "rope.dimension_count=8 is not supported"),
        ("llama", {"llama__rope__freq_base": 0.5}, "rope.freq_base=0.5 must be above 1"),
        ("llama", {"llama__rope__scaling__type": "spiral"}, "'spiral' is not supported"),
        ("llama", {"llama__context_length": 1 << 31}, "must be between 0 and"),
        ("llama", {"llama__attention__layer_norm_rms_epsilon": float("nan")}, "must be a finite number"),
        ("llama", {"tokenizer__ggml__model": "rwkv"}, "supported: 'gpt2', 'llama', 'gemma4', 'bert', 't5'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(architecture, changes, message, tmp_path):
    file = write(tmp_path / "model.gguf", architecture, **changes)
    with pytest.raises(ConfigError) as refusal:
        make_folder(file, tmp_path / "made")
    assert message in str(refusal.value)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_metadata_that_changes_nothing_is_no_reason_to_refuse_a_file(tmp_path):
    neutral = {"llama__attention__sliding_window": 64, "llama__logit_scale": 1.0, "llama__attention__causal": True}
    assert make_folder(write(tmp_path / "model.gguf", **neutral, llama__vocab_size=280), tmp_path / "made")


def test_gemmas_of_27b_have_another_scale():
    embedding = GgufTensor("token_embd.weight", (280, 32), BLOCK_FORMATS[1], 0)

    def scalar(architecture: str, num_layers: int) -> float:
        keys = SIZES | {"block_count": num_layers, "attention.sliding_window": 16, "attention.key_length": 8}
        model = model_of({f"{architecture}.{key}": value for key, value in keys.items()}, architecture)
        model.files[0].tensors[embedding.name] = embedding
        return config_fields(model)["query_pre_attn_scalar"]

    assert (scalar("gemma2", 46), scalar("gemma2", 42)) == (16, 8)
    assert (scalar("gemma3", 62), scalar("gemma3", 26)) == (16, 8)


def test_gemma_3n_says_the_sizes_of_layers_in_lists_and_how_many_gates_they_drop():
    own = {
        "block_count": 2,
        "attention.sliding_window": 16,
        "feed_forward_length": [96, 96],
        "activation_sparsity_scale": [1.6448535919189453, -math.inf],
        "attention.shared_kv_layers": 0,
    }
    model = model_of({f"gemma3n.{key}": value for key, value in (SIZES | own).items()}, "gemma3n")
    add_matrix(model, "token_embd.weight", 280)
    with pytest.raises(ConfigError, match=r"it has no matrix per_layer_token_embd\.weight"):
        config_fields(model)
    add_matrix(model, "per_layer_token_embd.weight", 270)
    add_matrix(model, "blk.0.laurel_l.weight", 8)
    fields = config_fields(model)
    assert fields["intermediate_size"] == 96
    assert fields["activation_sparsity_pattern"] == [0.95, 0.0]
    assert (fields["vocab_size_per_layer_input"], fields["laurel_rank"], fields["altup_num_inputs"]) == (270, 8, 4)
    assert fields["num_kv_shared_layers"] == 0


@pytest.mark.parametrize(
    ("change", "divisors", "message"),
    [
        ({}, [1.0, 1e30], "rope_freqs.weight must have 4 numbers, each 1 and then each 1e30"),
        ({}, [1e30, 1.0, 1.0, 1.0], "rope_freqs.weight must have 4 numbers"),
        ({"feed_forward_length": [48, 96, 48, 48]}, [], "feed_forward_length=[48, 96, 48, 48] must be one size"),
        ({"attention.head_count_kv": [1, 2, 1, 1]}, [], "different numbers of KV heads"),
        ({"attention.head_count_kv": [1, 1, 1, 2]}, [], "2 KV heads of full attention and 1 of windows"),
        ({"rope.dimension_count_swa": 2}, [], "rope.dimension_count_swa=2 other than attention.key_length_swa=4"),
    ],
)
def test_gemma_4_with_other_layers_is_refused_by_name(change, divisors, message, monkeypatch):
    own = {
        "block_count": 4,
        "attention.key_length": 8,
        "attention.key_length_swa": 4,
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": [True, True, True, False],
    }
    keys = {f"gemma4.{key}": value for key, value in (SIZES | own | change).items()}
    model = model_of(keys, "gemma4")
    monkeypatch.setattr(type(model), "floats", lambda model, name: divisors or [1.0, 1e30, 1e30, 1e30])
    add_matrix(model, "token_embd.weight", 280)
    for layer in range(4):
        add_matrix(model, f"blk.{layer}.attn_v.weight", 8)
    with pytest.raises(ConfigError) as refusal:
        config_fields(model)
    assert message in str(refusal.value)


@pytest.mark.parametrize(("base", "alpha"), [(648985.0, 50.0), (500000.0, None)])
def test_hunyuans_base_is_given_back_as_the_alpha_that_stretched_it(base, alpha):
    keys = SIZES | {"attention.key_length": 32, "rope.freq_base": base}
    model = model_of({f"hunyuan-dense.{key}": value for key, value in keys.items()}, "hunyuan-dense")
    add_matrix(model, "token_embd.weight", 280)
    fields = config_fields(model)
    assert fields.get("rope_scaling", {}).get("alpha") == alpha
    assert fields["rope_theta"] == (10000.0 if alpha else base)


def add_matrix(model, name: str, rows: int) -> None:
    model.files[0].tensors[name] = GgufTensor(name, (rows, 32), BLOCK_FORMATS[1], 0)


@pytest.mark.parametrize("architecture", ["qwen2moe", "qwen3moe", "gpt-oss"])
def test_experts_in_a_vector_are_refused(architecture):
    keys = SIZES | {"expert_count": 4, "expert_used_count": 2, "attention.sliding_window": 16}
    model = model_of({f"{architecture}.{key}": value for key, value in keys.items()}, architecture)
    for name in ("token_embd", "blk.0.ffn_gate_exps", "blk.0.ffn_gate_shexp"):
        shape = (280, 32) if name == "token_embd" else (32,)
        model.files[0].tensors[f"{name}.weight"] = GgufTensor(f"{name}.weight", shape, BLOCK_FORMATS[1], 0)
    with pytest.raises(ConfigError, match=r"blk\.0\.ffn_gate_(sh)?exps?\.weight has the shape \[32\]; it needs at"):
        config_fields(model)


def test_a_file_whose_tokenizer_is_not_supported_is_served_with_another(tmp_path):
    file = write(tmp_path / "model.gguf", tokenizer__ggml__pre="unheard-of", tokenizer__chat_template=TEMPLATE)
    with pytest.raises(ConfigError, match="Give the model's own tokenizer with --tokenizer FOLDER"):
        make_folder(file, tmp_path / "made")
    folder = make_folder(file, tmp_path / "made", has_tokenizer=False)
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.gguf", "config.json", "generation_config.json", "chat_template.jinja"}


def test_a_missing_file_and_another_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        find_model_folder(str(tmp_path / "nothing.gguf"))
    (tmp_path / "model.bin").touch()
    with pytest.raises(ConfigError, match=r"or a \.gguf file"):
        find_model_folder(str(tmp_path / "model.bin"))
    (tmp_path / "config.json").write_text("{}")
    write(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match=r"give the path of one of its \.gguf files"):
        find_model_folder(str(tmp_path))


def test_the_folder_is_in_the_cache_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = Path(find_model_folder(str(write(tmp_path / "model.gguf"))))
    assert folder.parent == tmp_path / "home/paged-serve/gguf"
    assert folder.name.startswith("model-")
    monkeypatch.setenv("HF_HOME", os.devnull)
    with pytest.raises(ConfigError, match="set HF_HOME to another place"):
        find_model_folder(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("count", [60, pytest.param(3_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_a_mutated_file_makes_a_folder_that_loads_or_is_refused_in_one_line(count, tmp_path):
    file = write(tmp_path / "model.gguf", tokenizer__chat_template=TEMPLATE)
    data, rng = file.read_bytes(), random.Random(count)
    start = read_gguf(file).tensors["token_embd.weight"].start
    refusals, num_made = [], 0
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(start)] = rng.choice((0, 1, 32, 0x7F, 0xFF, rng.randrange(256)))
        file.write_bytes(changed)
        try:
            folder = make_folder(file, tmp_path / "made")
            read_geometry(folder)
            Tokenizer(str(folder)).encode("some text <|im_end|>")
        except ConfigError as refusal:
            refusals.append(str(refusal))
        else:
            num_made += 1
    assert not any("\n" in refusal for refusal in refusals)
    assert min(len(refusals), num_made) > count / 20

"""Folders that cannot be computed exactly are refused by name, before anything is kept."""

import contextlib
import json
import os
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.adapter_folder import adapter_digest, read_adapter_config
from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.adapters.placing import place_adapter

from ..tiny_models.made_adapters import PREFIX, make_adapter
from ..tiny_models.tiny_model import HIDDEN, write_tiny_model
from .loaded import LORA, load

Q_A = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight"
Q_B = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_B.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def sites(base):
    return load(base, lora=LORA).adapters


@pytest.fixture
def made(tmp_path, base):
    return make_adapter(tmp_path / "adapter", base, targets=("q_proj", "down_proj"))


def refusal(made, sites) -> str:
    with pytest.raises(ConfigError) as error:
        place_adapter(made.message(), sites)
    return str(error.value)


def reconfigure(made, **fields):
    path = made.folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def retensor(made, **changed):
    """Replace tensors of q_proj by side, or add others by name; None removes one."""
    path = made.folder / "adapter_model.safetensors"
    tensors = load_file(path)
    for name, tensor in changed.items():
        name = {"a": Q_A, "b": Q_B}.get(name, name)
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias='all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["classifier"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"layer_replication": [[0, 4]]}, "layer_replication"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights"),
        ({"rank_pattern": {"(a+)+$": 4}}, "regular expression"),
        ({"r": 8}, "has rank 4, but adapter_config.json says r=8"),
        ({"r": 0}, "r`"),
        ({"r": "many"}, "r`"),
        ({"lora_alpha": 1e300}, "lora_alpha"),
    ],
    ids=str,
)
def test_a_setting_that_would_change_results_is_refused_by_name(fields, named, made, sites):
    reconfigure(made, **fields)
    assert named in refusal(made, sites)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"a": torch.full((4, HIDDEN), float("nan"))}, Q_A),
        ({"b": torch.full((HIDDEN, 4), float("inf"))}, Q_B),
        ({"b": torch.full((HIDDEN, 4), 1e39, dtype=torch.float64)}, Q_B),
        ({"a": torch.zeros(4, HIDDEN + 1)}, Q_A),
        ({"b": torch.zeros(HIDDEN - 1, 4)}, Q_B),
        ({"a": torch.zeros(4)}, Q_A),
        ({"a": torch.zeros(4, HIDDEN, dtype=torch.int32)}, "I32"),
        ({"a": None}, "no counterpart lora_A"),
        ({"b": None}, "no counterpart lora_B"),
        ({f"{PREFIX}lm_head.weight": torch.zeros(300, HIDDEN)}, "replaces a whole weight"),
        ({f"{PREFIX}model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.zeros(HIDDEN)}, "DoRA"),
        ({f"{PREFIX}model.layers.0.self_attn.q_proj.lora_B.bias": torch.zeros(HIDDEN)}, "bias"),
        ({f"{PREFIX}model.layers.0.self_attn.q_proj.lora_C.weight": torch.zeros(1, 1)}, "lora_C"),
        ({Q_A.replace("lora_A", "lora_A.default"): torch.zeros(4, HIDDEN)}, "twice"),
        (
            {Q_A.replace(".0.", ".9."): torch.zeros(4, HIDDEN), Q_B.replace(".0.", ".9."): torch.zeros(HIDDEN, 4)},
            "model.layers.9.self_attn.q_proj",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(changed, named, made, sites):
    retensor(made, **changed)
    assert named in refusal(made, sites)


def test_a_rank_beyond_the_limit_names_the_option(tmp_path, base, sites):
    assert "Raise --max-lora-rank" in refusal(make_adapter(tmp_path / "wide", base, rank=17), sites)


def test_an_adapter_that_changed_since_it_was_named_is_refused(made, sites):
    message = made.message()
    retensor(made, a=torch.ones(4, HIDDEN))
    with pytest.raises(ConfigError, match="has changed"):
        place_adapter(message, sites)


def test_an_embedding_that_peft_saved_unchanged_is_no_obstacle(tmp_path, base, sites):
    made = make_adapter(tmp_path / "adapter", base, targets=("embed_tokens", "lm_head"))
    weights = load_file(base / "model.safetensors")
    saved = {
        f"{PREFIX}{name}.base_layer.weight": weights[f"{name}.weight"] for name in ("model.embed_tokens", "lm_head")
    }
    retensor(made, **saved)
    place_adapter(made.message(), sites)
    saved[f"{PREFIX}lm_head.base_layer.weight"][3, 5] += 1
    retensor(made, **saved)
    assert "lm_head.base_layer.weight" in refusal(made, sites)


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_what_is_no_ordinary_file_is_refused(file, made, sites):
    message = made.message()
    (made.folder / file).unlink()
    with pytest.raises(ConfigError, match=f"{file} cannot be read"):
        place_adapter(message, sites)
    os.mkfifo(made.folder / file)
    with pytest.raises(ConfigError, match=f"{file} is not a file"):
        place_adapter(message, sites)


def test_cut_and_flipped_files_are_refused_and_nothing_else(made, sites):
    path, rng = made.folder / "adapter_model.safetensors", random.Random(0)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for round_ in range(150):
        if round_ % 3 == 0:
            damaged = whole[: rng.randrange(len(whole))]
        else:
            damaged = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(header)] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(ConfigError):  # a flipped byte may leave the header as it was
            place_adapter(made.message(), sites)
            assert bytes(damaged) == whole or round_ % 3


def test_the_digest_knows_what_results_depend_on(made):
    before = adapter_digest(made.folder)
    reconfigure(made, lora_dropout=0.5, base_model_name_or_path="elsewhere", inference_mode=True)
    assert adapter_digest(made.folder) == before
    reconfigure(made, lora_alpha=9)
    assert adapter_digest(made.folder) != before
    reconfigure(made, lora_alpha=8)
    assert adapter_digest(made.folder) == before
    retensor(made, a=torch.zeros(4, HIDDEN))
    assert adapter_digest(made.folder) != before


def test_the_order_of_patterns_counts(made):
    reconfigure(made, alpha_pattern={"q_proj": 1.0, "self_attn.q_proj": 2.0})
    first = adapter_digest(made.folder), list(read_adapter_config(made.folder).alpha_pattern)
    reconfigure(made, alpha_pattern={"self_attn.q_proj": 2.0, "q_proj": 1.0})
    assert (adapter_digest(made.folder), list(read_adapter_config(made.folder).alpha_pattern)) != first


def test_experts_are_refused_by_name(tmp_path):
    base = tmp_path / "experts"
    base.mkdir()
    fields = {"n_routed_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "n_shared_experts": 1}
    names = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "first_k_dense_replace": 1}
    write_tiny_model(base, **names, **fields, n_group=1, topk_group=1, norm_topk_prob=True, use_qk_norm=False)
    sites = load(base, lora=LORA).adapters
    adapter = make_adapter(tmp_path / "adapter", base, targets=("experts.1.up_proj",))
    assert "experts.1.up_proj" in refusal(adapter, sites)

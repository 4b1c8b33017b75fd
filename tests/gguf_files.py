"""GGUF files of Hugging Face folders, written by the gguf package as llama.cpp's converter writes them."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from .gguf_architectures import ARCHITECTURES, RECURRENT, as_stored, field_of, kv_heads_of, own_keys
from .gguf_dbrx import DBRX, dbrx_config
from .gguf_expert_families import OWN
from .gguf_gated_delta import GATED_DELTA, gated_delta_keys
from .gguf_gemma4 import gemma4_divisors
from .gguf_names import name_of
from .gguf_recurrent import recurrent_keys

Type = gguf.GGMLQuantizationType
FLOAT32 = (".ffn_gate_inp", ".ssm_d", ".ssm_norm", "conv")  # parts of names of float32 tensors
TIED = ("gpt2", "starcoder", "bloom", "falcon")  # without a word about it in config.json
EXPERT_KEYS = {  # of config.json, and of a file
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
FLOATS = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16}
STORED: dict[str, Any] = {"float32": Type.F32, "float16": Type.F16, "bfloat16": Type.BF16}
BYTES = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
BYTES += [chr(256 + index) for index in range(256 - len(BYTES))]


def write_gguf(
    folder: Path,
    path: Path,
    type_of: Callable[[str, Tensor], Any] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    tensors_per_part: int = 0,
    **more: Any,
) -> Path:
    """Write the model in `folder` to `path`, or with `tensors_per_part` in parts beside it.

    `type_of(name, tensor)`: the type of a matrix; None: the folder's dtype. `tokenizer`: keys without "tokenizer."; by
    default a small one. `more`: further keys of the architecture, with "__" for dots; None removes a key.
    """
    config, architecture = _config_of(folder)
    tensors = with_stacked_experts(load_file(folder / "model.safetensors"), architecture)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_part)
    keys = metadata_of(config, architecture, tensors) | {name.replace("__", "."): value for name, value in more.items()}
    for key, value in keys.items():
        if value is not None:
            add_key(writer, f"{architecture}.{key}", value)
    for key, value in (tokenizer or byte_tokenizer(config["vocab_size"])).items():
        add_key(writer, f"tokenizer.{key}", value)
    for name in ("alpha_p", "alpha_n", "beta") if architecture == "apertus" else ():
        numbers = [tensors.pop(f"model.layers.{layer}.mlp.act_fn.{name}") for layer in range(keys["block_count"])]
        writer.add_array(f"xielu.{name}", [float(each) for each in numbers])
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith("act_fn.eps")}
    named = name_of(architecture, keys["block_count"])
    is_tied = config.get("tie_word_embeddings", architecture in TIED)
    for name, values in as_stored(tensors, architecture, config).items():
        if is_tied and name == "lm_head.weight":
            continue
        stored = named(name)
        stored += ".weight" if stored.endswith("attn_sinks") else ""
        is_float = (
            values.dim() == 1
            or stored.endswith((".bias", ".scale", ".ssm_a"))
            or any(each in stored for each in FLOAT32)
        )
        dtype = STORED[str(tensors.get(name, values).dtype).removeprefix("torch.")]
        kind = Type.F32 if is_float else type_of(name, values) if type_of else None
        add_tensor(writer, stored, values, dtype if kind is None else kind)
    for name, factors in _rope_tensors(config).items():
        writer.add_tensor(name, np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _config_of(folder: Path) -> tuple[dict[str, Any], str]:
    """config.json, with the names that most architectures have, and the architecture of the file."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    return config | (dbrx_config(config) if architecture == DBRX else {}), architecture


def with_stacked_experts(tensors: Mapping[str, Tensor], architecture: str) -> dict[str, Tensor]:
    """The matrices of a layer's experts as one tensor, and the gate of a shared expert as a vector."""
    found: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            found[name] = tensor.squeeze() if "shared_expert_gate" in name else tensor
    stacked = {name: torch.stack([each[index] for index in range(len(each))]) for name, each in experts.items()}
    if architecture == "gpt-oss":
        _split_gate_up(found)
    return found | stacked


def _split_gate_up(found: dict[str, Tensor]) -> None:
    """Of gpt-oss, whose tensors are [experts, in, out] already, gate and up in turn."""
    for name in [each for each in found if "experts.gate_up_proj" in each]:
        both, ending = found.pop(name), "bias" if name.endswith("_bias") else "weight"
        for part, start in (("gate_proj", 0), ("up_proj", 1)):
            own = both[..., start::2] if ending == "bias" else both[..., start::2].transpose(1, 2)
            found[f"{name.partition('gate_up_proj')[0]}{part}.{ending}"] = own.contiguous()
    for name in [each for each in found if each.endswith("experts.down_proj")]:
        found[f"{name}.weight"] = found.pop(name).transpose(1, 2).contiguous()
        found[f"{name}.bias"] = found.pop(f"{name}_bias")


def metadata_of(config: dict[str, Any], architecture: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The keys of an architecture, without its name."""
    heads = field_of(config, "num_attention_heads", "n_head", "n_heads", "hidden_size")
    hidden = field_of(config, "hidden_size", "n_embd", "d_model")
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention") or rope
    partial = full.get("partial_rotary_factor", 1.0)
    keys: dict[str, Any] = {
        "context_length": config.get("max_position_embeddings") or config.get("n_positions") or 512,
        "embedding_length": hidden,
        "feed_forward_length": config.get("intermediate_size") or feed_forward_size(tensors),
        "block_count": num_layers_of(config),
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads_of(config, heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * partial),
    }
    if "rope_theta" in full:
        keys["rope.freq_base"] = float(full["rope_theta"])
    for field, key in EXPERT_KEYS.items():
        if config.get(field):
            keys[key] = config[field]
    if full.get("rope_type") in ("linear", "yarn"):
        keys |= {"rope.scaling.type": full["rope_type"], "rope.scaling.factor": full["factor"]}
    if "original_max_position_embeddings" in full and full["rope_type"] in ("yarn", "longrope"):
        keys["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
    keys |= own_keys(config, architecture)
    if architecture in GATED_DELTA:
        keys |= gated_delta_keys(config, architecture, tensors)
    return (
        keys | recurrent_keys(config, architecture, tensors)
        if architecture in RECURRENT and architecture not in OWN
        else keys
    )


def num_layers_of(config: dict[str, Any]) -> int:
    names = [name for name in ("num_hidden_layers", "n_layer", "n_layers") if config.get(name)]
    return int(config[names[0]]) if names else len(config["layers_block_type"])


def feed_forward_size(tensors: Mapping[str, Tensor]) -> int:
    """Of models whose config.json does not say it."""
    named = (name for name in tensors if name.endswith(("c_fc.weight", "h_to_4h.weight", "ffn.up_proj.weight")))
    return max((max(tensors[name].shape) for name in named), default=0)  # that of layers which differ is a list


def _rope_tensors(config: dict[str, Any]) -> dict[str, list[float]]:
    """The tensors of Llama 3.1's and of Phi 3's scaling."""
    rope = config.get("rope_parameters") or {}
    if config["model_type"] == "gemma4_text":
        return {"rope_freqs.weight": gemma4_divisors(config)}
    if rope.get("rope_type") == "longrope":
        return {"rope_factors_long.weight": rope["long_factor"], "rope_factors_short.weight": rope["short_factor"]}
    if rope.get("rope_type") != "llama3":
        return {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    first, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    divisors = []
    for frequency in (rope["rope_theta"] ** -(torch.arange(0, head_dim, 2).float() / head_dim)).tolist():
        wavelength = 2 * np.pi / frequency
        smooth = (first / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        divisors.append(1.0 if wavelength < first / high else factor if wavelength > first / low else between)
    return {"rope_freqs.weight": divisors}


def add_tensor(writer: gguf.GGUFWriter, name: str, values: Tensor, kind: Any) -> None:
    """Add `values` as blocks of `kind`; formats that the package cannot write become `random_blocks`."""
    if kind == Type.BF16:
        data = values.bfloat16().contiguous().view(torch.uint8).numpy()
    elif kind in FLOATS:
        data = values.to(FLOATS[kind]).numpy()
    elif kind == Type.NVFP4:
        data, scales = nvfp4_blocks(values)
        writer.add_tensor(name.replace(".weight", ".scale"), scales)
        writer.add_tensor(name.replace(".weight", ".input_scale"), np.full_like(scales, 0.02))
    else:
        data = blocks_of(kind, values.float())
    writer.add_tensor(name, data, raw_dtype=kind)


def nvfp4_blocks(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of NVFP4 of the matrix, or of each expert's, which the package cannot write, and each one's scale."""
    groups = values.float().unflatten(-1, (-1, 4, 16))
    of_matrix = values.float().abs().flatten(-2).amax(-1) / (6 * 448)
    whole = of_matrix.view(*of_matrix.shape, *(1,) * (groups.dim() - of_matrix.dim()))
    scales = (groups.abs().amax(-1, keepdim=True) / 6 / whole).to(torch.float8_e4m3fn)
    numbers = torch.tensor(gguf.quants.NVFP4.kvalues) / 2
    steps = (scales.float() * whole).clamp(min=1e-30)
    codes = (groups / steps).unsqueeze(-1).sub(numbers).abs().argmin(-1).byte()
    pairs = codes[..., :8] | (codes[..., 8:] << 4)
    blocks = torch.cat([scales.view(torch.uint8).flatten(-2), pairs.flatten(-2)], -1)
    return blocks.flatten(-2).numpy(), of_matrix.view(-1).numpy()


def blocks_of(kind: Any, values: Tensor) -> np.ndarray:
    cannot_be_written = kind.name.endswith("_K") or kind.name.startswith("IQ")
    return random_blocks(kind, tuple(values.shape)) if cannot_be_written else gguf.quantize(values.numpy(), kind)


def random_blocks(kind: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Blocks of any bits, whose scales are such that the values have about the size of a model's."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng((seed, int(kind), *shape))
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=np.uint8)
    for at in SCALES_AT[kind.name]:
        scales = rng.uniform(-1, 1, blocks.shape[:-1]).astype(np.float16) * np.float16(SCALE_SIZES[kind.name])
        put_scales(kind.name, blocks, at, scales)
    return blocks.reshape(*shape[:-1], -1)


def put_scales(name: str, blocks: np.ndarray, at: int, scales: np.ndarray) -> None:
    """Put float16 `scales` into `blocks`, at byte `at` of each, or in IQ1_M into the upper nibbles of four words."""
    if name != "IQ1_M":
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
        return
    bits = scales.view(np.uint16)
    for word in range(4):
        upper = (bits >> (4 * word) & 15).astype(np.uint8) << 4
        blocks[..., at + 2 * word + 1] = blocks[..., at + 2 * word + 1] & 15 | upper


# The places of the float16 scales in a block, and a size that makes weights of about 0.1.
SCALES_AT = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
    "IQ1_M": (48,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
SCALE_SIZES = {
    "Q8_0": 0.001,
    "Q4_0": 0.01,
    "Q4_1": 0.01,
    "Q5_0": 0.01,
    "Q5_1": 0.01,
    "IQ4_NL": 0.001,
    "IQ4_XS": 0.0001,
    "Q2_K": 0.01,
    "Q3_K": 0.003,
    "Q4_K": 0.0005,
    "Q5_K": 0.0003,
    "Q6_K": 0.0001,
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), 0.003),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S"), 0.001),
    **dict.fromkeys(("IQ1_S", "IQ1_M"), 0.02),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), 0.1),
}


def byte_tokenizer(vocab_size: int, **more: Any) -> dict[str, Any]:
    """A byte-level tokenizer of three special tokens, single bytes and one merge; filled up to `vocab_size`."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "th", *BYTES][:vocab_size]
    kinds = [3, 3, 3] + [1] * (len(tokens) - 3) + [5] * (vocab_size - len(tokens))
    tokens += [f"[PAD{index}]" for index in range(len(tokens), vocab_size)]
    return {
        "ggml.model": "gpt2",
        "ggml.pre": "qwen2",
        "ggml.tokens": tokens,
        "ggml.token_type": kinds,
        "ggml.merges": ["t h"],
        "ggml.eos_token_id": 2,
        "ggml.padding_token_id": 0,
        **more,
    }


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)

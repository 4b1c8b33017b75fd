"""GGUF files of encoders' folders, written by the gguf package as llama.cpp's converter writes them."""

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file

from .gguf_files import FLOATS, STORED, Type, add_key, add_tensor

KINDS = {"mean": 1, "cls": 2, "last": 3}
PREFIXES = ("bert.", "roberta.", "distilbert.", "nomic_bert.")
OTHER_NAMES = {"classifier.weight": "classifier.out_proj.weight", "classifier.bias": "classifier.out_proj.bias"}
FLOAT32 = ("position_embd", "token_types")
KEYS: dict[str, tuple[str, ...]] = {  # in a file: in config.json
    "embedding_length": ("hidden_size", "dim", "n_embd"),
    "feed_forward_length": ("intermediate_size", "hidden_dim", "n_inner"),
    "block_count": ("num_hidden_layers", "n_layers", "n_layer"),
    "attention.head_count": ("num_attention_heads", "n_heads", "n_head"),
}


def write_encoder(folder: Path, path: Path, pooling: str = "", kind: Any = None, **more: Any) -> Path:
    """Write the encoder in `folder`; `pooling`: "", mean, cls or last; `kind`: of matrices, by default the folder's.

    `more`: further keys, with "__" for dots; None removes a key.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = "nomic-bert" if config["model_type"] == "nomic_bert" else "bert"
    tensors = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(path, architecture)
    keys = {f"{architecture}.{key}": value for key, value in _keys(config, architecture, pooling).items()}
    keys |= word_piece_tokenizer(config["vocab_size"], token_type_count=config.get("type_vocab_size", 1))
    for key, value in (keys | {name.replace("__", "."): value for name, value in more.items()}).items():
        if value is not None:
            add_key(writer, key, value)
    enum = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(enum, keys[f"{architecture}.block_count"])
    for name, values in tensors.items():
        if "pooler" in name or name.endswith(("position_ids", "inv_freq")):
            continue
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        name = OTHER_NAMES.get(name, name)
        if name == "embeddings.position_embeddings.weight" and _first_position(config):
            values = values[_first_position(config) :]
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        is_float32 = values.dim() == 1 or any(each in stored for each in FLOAT32)
        own = kind or STORED[str(values.dtype).removeprefix("torch.")]
        add_tensor(writer, stored, values.contiguous(), Type.F32 if is_float32 else own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _first_position(config: dict[str, Any]) -> int:
    return config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0


def _keys(config: dict[str, Any], architecture: str, pooling: str) -> dict[str, Any]:
    """The keys of an architecture, without its name."""
    keys: dict[str, Any] = {
        key: next(config[name] for name in names if config.get(name) is not None) for key, names in KEYS.items()
    }
    keys["context_length"] = config["max_position_embeddings"] - _first_position(config)
    keys["attention.layer_norm_epsilon"] = 1e-12 if config["model_type"] == "distilbert" else config["layer_norm_eps"]
    keys["attention.causal"] = False
    if pooling:
        keys["pooling_type"] = KINDS[pooling]
    if architecture == "nomic-bert":
        keys["rope.freq_base"] = float(config["rope_parameters"]["rope_theta"])
    if labels := config.get("id2label"):
        keys["classifier.output_labels"] = list(labels.values())
    return keys


def word_piece_tokenizer(vocab_size: int, **more: Any) -> dict[str, Any]:
    """A WordPiece tokenizer of five special tokens, letters and a few words; filled up to `vocab_size`."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    kinds = [3] * len(tokens)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
    tokens += [f"▁{each}" for each in letters] + list(letters) + ["▁the", "▁cat", "s", "ing", "▁[unused0]"]
    tokens = list(dict.fromkeys(tokens))[:vocab_size]
    kinds += [1] * (len(tokens) - len(kinds)) + [5] * (vocab_size - len(tokens))
    tokens += [f"▁[PAD{index}]" for index in range(len(tokens), vocab_size)]
    keys = {
        "model": "bert",
        "pre": "jina-v2-en",
        "tokens": tokens,
        "token_type": kinds,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "unknown_token_id": 1,
        "seperator_token_id": 3,
        "padding_token_id": 0,
        "mask_token_id": 4,
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": False,
        "normalizer.lowercase": True,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def dequantized(values: torch.Tensor, kind: Any) -> torch.Tensor:
    """What the gguf package makes of the blocks of `values`."""
    if kind in FLOATS:
        return values.to(FLOATS[kind]).float()
    return torch.from_numpy(gguf.dequantize(gguf.quantize(values.numpy(), kind), kind).copy())

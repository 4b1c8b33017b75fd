"""Reads a checkpoint's quantization settings from its JSON files."""

from pathlib import Path
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file

from ..checkpoint.text_part import read_fields
from .config import (
    Awq,
    BitNet,
    BitsAndBytes,
    BlockFp8,
    CompressedTensors,
    Gptq,
    ModelOpt,
    QuantizationConfig,
    problem_of,
)

SUPPORTED = (
    "compressed-tensors (W8A8 int8 or fp8, with dynamic activations per token or static ones; 4 or 8 bits, NVFP4 or "
    "MXFP4, weight-only), gptq (4 or 8 bits), awq (4 bits), bitsandbytes (nf4, fp4 or int8), bitnet (ternary), fp8 (a "
    "scale per block of weights, or per matrix) and modelopt (FP8: a scale per matrix, output or block; NVFP4)"
)
METHODS: dict[str, type[QuantizationConfig]] = {
    "compressed-tensors": CompressedTensors,
    "gptq": Gptq,
    "awq": Awq,
    "fp8": BlockFp8,
    "bitsandbytes": BitsAndBytes,
    "bitnet": BitNet,
    "modelopt": ModelOpt,
}
FORMAT_FIELDS = {"gptq": "checkpoint_format", "awq": "version"}  # newer tools call each of them "format"
MODELOPT = "modelopt"
MXFP4 = "mxfp4"  # it has no settings: tensors of experts in 4-bit floats are known by their names, see mxfp4.py


def read_quantization_config(folder: Path) -> tuple[str, QuantizationConfig] | None:
    """The method's name and its checked settings; None if the weights are not quantized.

    Raises ConfigError, naming the unsupported setting and the supported ones.
    """
    path = folder / "config.json"
    found = read_fields(folder).get("quantization_config")
    if not isinstance(found, dict | None):
        raise ConfigError(f"{path}: quantization_config={found!r} must be an object")
    if found is None:
        path, found = _own_file(folder)
    if found is None:
        return None
    name = _method_of(path, found)
    if name == MXFP4:
        return None
    if name not in METHODS:
        raise ConfigError(f"{path}: weights quantized by {name!r} are not supported; supported: {SUPPORTED}")
    try:
        config = msgspec.convert(_settings(name, found), METHODS[name])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: the settings of {name} cannot be used: {error}") from error
    if problem := problem_of(config):
        raise ConfigError(f"{path}: {name} with {problem} is not supported; supported: {SUPPORTED}")
    return name, config


def _own_file(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """A file in which a tool keeps the settings if config.json lacks them, and these; None if there is no such file."""
    path = folder / "quantize_config.json"  # GPTQ checkpoints of 2023
    if path.is_file():
        return path, {"quant_method": "gptq", **read_json_file(path, dict[str, Any])}
    path = folder / "hf_quant_config.json"  # of ModelOpt's first releases, and of its later ones beside config.json
    if not path.is_file():
        return path, None
    fields = read_json_file(path, dict[str, Any])
    producer = fields.get("producer")
    name = producer.get("name") if isinstance(producer, dict) else None
    return path, {**fields, "quant_method": name or MODELOPT}


def _method_of(path: Path, fields: dict[str, Any]) -> str:
    """The name of the method. Raises ConfigError if there is none."""
    if (name := fields.get("quant_method")) is not None:
        return MODELOPT if str(name).startswith(MODELOPT) else str(name)  # vLLM's names for it end in that of a form
    if fields.get("load_in_4bit") or fields.get("load_in_8bit"):  # the first files of bitsandbytes have no name
        return "bitsandbytes"
    raise ConfigError(
        f"{path}: quantization_config has no quant_method, as in files of MLX, which are not supported; supported: "
        f"{SUPPORTED}"
    )


def _settings(method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields under the names of METHODS. A null field counts as absent."""
    if method == MODELOPT and isinstance(inner := fields.get("quantization"), dict):  # as in a file of its own
        fields = inner
    settings = {name: value for name, value in fields.items() if value is not None}
    if method in FORMAT_FIELDS and "format" in settings:
        settings.setdefault(FORMAT_FIELDS[method], settings["format"])
    return settings

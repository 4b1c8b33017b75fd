"""Reads the matrices of a PEFT folder, and refuses by name what cannot be computed exactly."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from paged_serve.protocol.adapter_folder import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterConfig,
    read_adapter_config,
    read_adapter_weights,
)
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.loading.adapters import Adapter

from ..checkpoint.safetensors_files import FLOATS, TensorEntry, parse_header

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.default)?(?P<end>\.weight)?"
)
SAVED = re.compile(r"(?:base_model\.model\.)?(?P<module>.+?)(?:\.base_layer)?\.weight")
LITERAL = re.compile(r"\^?[\w.\-]+\$?")  # keys of patterns that are no regular expressions, which may take for ever
UNSUPPORTED = (  # fields of adapter_config.json, and the values that they must have
    ("bias", "none"),
    ("use_dora", False),
    ("lora_bias", False),
    ("use_qalora", False),
    ("layer_replication", None),
    ("trainable_token_indices", None),
    ("target_parameters", None),
    ("alora_invocation_tokens", None),
)
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initialisations that change base weights too


@dataclass(slots=True, eq=False)
class ModuleMatrices:
    """The matrices of one module, as they are in the file: A [rank, inputs], B [outputs, rank]."""

    name: str  # of the module
    scale: float = 0.0
    is_table: bool = False
    names: dict[str, str] = field(default_factory=dict)  # by side, of the tensors
    sides: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return self.sides["A"].shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class SavedWeight:
    """A whole weight in the file. PEFT adds embeddings that an adapter targets, unchanged."""

    name: str  # of the tensor
    module: str
    values: Tensor


def read_peft_folder(adapter: Adapter, max_rank: int) -> tuple[dict[str, ModuleMatrices], list[SavedWeight]]:
    """The matrices by module, and whole weights; numbers are not looked at yet.

    Raises ConfigError, naming the file and the field or tensor, if anything is amiss.
    """
    folder = Path(adapter.path)
    config = read_adapter_config(folder)
    check_config(folder / CONFIG_FILE, config)
    data, digest = read_adapter_weights(folder, config)
    if digest != adapter.digest:
        raise ConfigError(
            f"{folder} has changed: its digest is {digest}, but that of adapter {adapter.name!r} is {adapter.digest}; "
            "load the adapter again"
        )
    path = folder / WEIGHTS_FILE
    entries, start = parse_header(path, data)
    return _modules(path, config, entries, memoryview(data)[start:], max_rank)


def check_config(path: Path, config: AdapterConfig) -> None:
    """Raises ConfigError for a setting with which results would differ from PEFT's."""
    for name, only in UNSUPPORTED:
        value = getattr(config, name)
        if value != only and value not in ([], {}):
            raise ConfigError(f"{path}: {name}={_short(value)} is not supported; only {only} is")
    if config.modules_to_save:
        raise ConfigError(
            f"{path}: modules_to_save={_short(config.modules_to_save)} is not supported: it replaces whole weights; "
            "merge the adapter into its base model"
        )
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights.lower().startswith(CHANGES_BASE):
        raise ConfigError(
            f"{path}: init_lora_weights={_short(config.init_lora_weights)} changes the base model's weights too; "
            "convert the adapter to an ordinary LoRA"
        )
    for pattern in (*(config.rank_pattern or ()), *(config.alpha_pattern or ())):
        if not LITERAL.fullmatch(pattern):
            raise ConfigError(
                f"{path}: {_short(pattern)} is a regular expression; name modules by the end of their name"
            )


def _modules(
    path: Path, config: AdapterConfig, entries: Mapping[str, TensorEntry], data: memoryview, max_rank: int
) -> tuple[dict[str, ModuleMatrices], list[SavedWeight]]:
    modules: dict[str, ModuleMatrices] = {}
    saved: list[SavedWeight] = []
    for name, entry in entries.items():
        if ".lora_" not in name and (whole := SAVED.fullmatch(name)) is not None:
            saved.append(SavedWeight(name, whole["module"], _tensor(path, name, entry, data)))
            continue
        found = TENSOR.fullmatch(name)
        if found is None or bool(found["embedding"]) == bool(found["end"]):
            raise ConfigError(f"{path}: tensor {_short(name)} {_reason(name)}")
        module = modules.setdefault(found["module"], ModuleMatrices(found["module"]))
        module.is_table = bool(found["embedding"])
        if found["side"] in module.sides:
            raise ConfigError(f"{path}: tensor {_short(name)} is there twice, as {_short(module.names[found['side']])}")
        module.names[found["side"]] = name
        module.sides[found["side"]] = _tensor(path, name, entry, data)
    if not modules:
        raise ConfigError(f"{path} has no LoRA matrices")
    for module in modules.values():
        _check_rank(path, config, module, max_rank)
    return modules, saved


def _check_rank(path: Path, config: AdapterConfig, module: ModuleMatrices, max_rank: int) -> None:
    """Both sides are there and agree with the configuration; sets the scale."""
    if absent := {"A", "B"} - module.sides.keys():
        (other,) = module.names.values()
        raise ConfigError(f"{path}: tensor {_short(other)} has no counterpart lora_{absent.pop()}")
    a, b = module.sides["A"], module.sides["B"]
    rank = int(_of_pattern(config.rank_pattern, module.name, config.r))
    if a.shape[0] != rank or b.shape[1] != rank:
        name, found = (module.names["A"], a.shape[0]) if a.shape[0] != rank else (module.names["B"], b.shape[1])
        raise ConfigError(f"{path}: tensor {_short(name)} has rank {found}, but {CONFIG_FILE} says r={rank} for it")
    if rank > max_rank:
        raise ConfigError(
            f"{path}: tensor {_short(module.names['A'])} has rank {rank}; this server accepts at most {max_rank} "
            f"(max_lora_rank={max_rank}). Raise --max-lora-rank"
        )
    alpha = _of_pattern(config.alpha_pattern, module.name, config.lora_alpha)
    module.scale = alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _of_pattern(pattern: Mapping[str, float] | None, module: str, otherwise: float) -> float:
    """The first value whose key is the module's name or its end, from a dot on."""
    for key, value in (pattern or {}).items():
        end = key.removeprefix("^").removesuffix("$")
        if module == end or (not key.startswith("^") and module.endswith(f".{end}")):
            return value
    return otherwise


def _tensor(path: Path, name: str, entry: TensorEntry, data: memoryview) -> Tensor:
    if entry.dtype not in FLOATS:
        raise ConfigError(
            f"{path}: tensor {_short(name)} has dtype {_short(entry.dtype)}; supported: {', '.join(FLOATS)}"
        )
    if len(entry.shape) != 2 or min(entry.shape) < 1:
        raise ConfigError(f"{path}: tensor {_short(name)} has shape {_short(entry.shape)}, but must be a matrix")
    start, stop = entry.data_offsets
    dtype = DTYPES[entry.dtype]
    here = data[start:stop]
    if start % dtype.itemsize:  # a header of odd length
        here = memoryview(bytearray(here))
    return torch.frombuffer(here, dtype=dtype).view(entry.shape)


def _reason(name: str) -> str:
    if "lora_magnitude_vector" in name:
        return "is that of a DoRA, which is not supported"
    if name.endswith(".bias"):
        return "is a bias; only adapters with bias=none are supported"
    return "is none of lora_A.weight, lora_B.weight, lora_embedding_A and lora_embedding_B"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."

"""A checkpoint's quantization settings, and which of them are supported."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

BlockSide = Annotated[int, Meta(le=1 << 24)]  # more than any matrix has; below 1 is refused by name


class Gptq(msgspec.Struct, frozen=True):
    """Settings of AutoGPTQ and GPTQModel. Group sizes and activation order are inferred from the tensors."""

    bits: int
    group_size: int = -1
    desc_act: bool = False
    lm_head: bool = False
    checkpoint_format: str = "gptq"  # "gptq": zero points are stored minus one; "gptq_v2": unchanged
    is_marlin_format: bool = False
    dynamic: dict[str, dict[str, Any]] | None = None  # pattern -> changed settings; "-:" patterns: not quantized


class Awq(msgspec.Struct, frozen=True):
    """Settings of AutoAWQ, with both spellings of the number of bits and of the group size."""

    bits: int | None = None
    w_bit: int | None = None
    group_size: int | None = None
    q_group_size: int | None = None
    zero_point: bool = True
    version: str = "gemm"


class Arguments(msgspec.Struct, frozen=True):
    """compressed-tensors: the quantization of one kind of tensor."""

    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    block_structure: tuple[BlockSide, BlockSide] | None = None
    dynamic: bool | str = False
    actorder: bool | str | None = None


class ConfigGroup(msgspec.Struct, frozen=True):
    """compressed-tensors: one quantization scheme, and the modules to which it applies."""

    targets: list[str]
    weights: Arguments | None = None
    input_activations: Arguments | None = None
    output_activations: Arguments | None = None
    format: str | None = None


class CompressedTensors(msgspec.Struct, frozen=True):
    """Settings of llm-compressor."""

    config_groups: dict[str, ConfigGroup]
    format: str = "dense"
    ignore: list[str] | None = None
    kv_cache_scheme: Any = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None


class BlockFp8(msgspec.Struct, frozen=True):
    """Settings of DeepSeek-V3 and Qwen3, of Ministral 3 and AutoFP8. Modules without scales are not quantized."""

    activation_scheme: str = "dynamic"
    fmt: str = "e4m3"
    weight_block_size: tuple[BlockSide, BlockSide] = (128, 128)  # of matrices with more than one scale
    kv_cache_scheme: Any = None


class BitsAndBytes(msgspec.Struct, frozen=True):
    """Settings of bitsandbytes. Which modules are quantized, and how, is inferred from the tensors."""

    bnb_4bit_quant_storage: str = "uint8"


class BitNet(msgspec.Struct, frozen=True):
    """Settings of BitNet. Packed matrices are those with scales."""

    linear_class: Literal["bitlinear", "autobitlinear"] = "bitlinear"
    quantization_mode: Literal["offline", "online"] = "offline"
    modules_to_not_convert: list[str] | None = None
    use_rms_norm: bool = False


class ModelOpt(msgspec.Struct, frozen=True):
    """Settings of NVIDIA's ModelOpt. Which modules are quantized, and how, is inferred from the tensors."""

    quant_algo: str = ""  # "": only the KV cache is quantized
    quantized_layers: dict[str, dict[str, Any]] | None = None  # the settings of each module of MIXED_PRECISION
    kv_cache_scheme: Any = None
    kv_cache_quant_algo: Any = None  # the same in a file of its own


QuantizationConfig = Gptq | Awq | CompressedTensors | BlockFp8 | BitsAndBytes | BitNet | ModelOpt
MODELOPT_FORMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4")
FP4_FORMATS = {"nvfp4-pack-quantized": ("tensor_group", 16), "mxfp4-pack-quantized": ("group", 32)}  # strategy and size
GROUP_FORMATS = ("int-quantized", "float-quantized", "pack-quantized", *FP4_FORMATS)
EXPRESSION = "re:"  # begins the patterns of compressed-tensors that are regular expressions


def problem_of(config: QuantizationConfig) -> str:
    """The unsupported setting, or "". The readers check the settings of individual modules."""
    match config:
        case Gptq():
            return _gptq_problem(config)
        case Awq():
            return _awq_problem(config)
        case CompressedTensors():
            return _compressed_tensors_problem(config)
        case BlockFp8():
            return _block_fp8_problem(config)
        case BitsAndBytes(bnb_4bit_quant_storage=storage):
            return "" if storage == "uint8" else f"bnb_4bit_quant_storage={storage!r}"
        case BitNet():
            return _bitnet_problem(config)
        case ModelOpt():
            return _modelopt_problem(config)


def quantizes_kv_cache(config: QuantizationConfig | None) -> bool:
    """Whether the checkpoint is meant for a KV cache of other numbers, for which it may have scales."""
    match config:
        case CompressedTensors() | BlockFp8():
            return config.kv_cache_scheme is not None
        case ModelOpt():
            return config.kv_cache_scheme is not None or config.kv_cache_quant_algo is not None
        case _:
            return False


def _gptq_problem(config: Gptq) -> str:
    if config.bits not in (4, 8):
        return f"bits={config.bits}"
    if config.is_marlin_format or config.checkpoint_format not in ("gptq", "gptq_v2"):
        return f"checkpoint_format={'marlin' if config.is_marlin_format else config.checkpoint_format!r}"
    if config.lm_head:
        return "a quantized lm_head"
    overrides = [pattern for pattern in config.dynamic or {} if not pattern.startswith("-:")]
    return f"separate settings for {overrides[0]!r}" if overrides else ""


def _awq_problem(config: Awq) -> str:
    bits = config.bits or config.w_bit
    if bits != 4:
        return f"bits={bits}"
    if config.version.lower() != "gemm":
        return f"version={config.version!r}"
    return "" if config.zero_point else "zero_point=false"


def _block_fp8_problem(config: BlockFp8) -> str:
    if min(config.weight_block_size) < 1:
        return f"weight_block_size={config.weight_block_size}"
    if config.activation_scheme not in ("dynamic", "static"):
        return f"activation_scheme={config.activation_scheme!r}"
    return "" if config.fmt.startswith("e4m3") else f"fmt={config.fmt!r}"


def _bitnet_problem(config: BitNet) -> str:
    if config.use_rms_norm:
        return "use_rms_norm"
    if config.quantization_mode == "online" and config.linear_class != "autobitlinear":
        return "quantization_mode='online' of another linear_class than autobitlinear"
    return _pattern_problem([f"{EXPRESSION}{each}" for each in config.modules_to_not_convert or []])


def _modelopt_problem(config: ModelOpt) -> str:
    if config.quant_algo.upper() != "MIXED_PRECISION":
        return _form_problem(config.quant_algo)
    problems = (
        (name, _form_problem(settings.get("quant_algo"))) for name, settings in (config.quantized_layers or {}).items()
    )
    return next((f"{problem} of {name}" for name, problem in problems if problem), "")


def _form_problem(name: object) -> str:
    return "" if not name or str(name).upper() in MODELOPT_FORMS else f"quant_algo={name!r}"


def _compressed_tensors_problem(config: CompressedTensors) -> str:
    if (config.sparsity_config or {}).get("format", "dense") != "dense":
        return f"sparsity format {(config.sparsity_config or {})['format']!r}"
    if (config.transform_config or {}).get("config_groups"):
        return "transform_config"
    for name, group in config.config_groups.items():
        if problem := group_problem(group, group.format or config.format) or _pattern_problem(group.targets):
            return f"{problem} in {name}"
    return _pattern_problem(config.ignore or [])


def _pattern_problem(patterns: list[str]) -> str:
    for pattern in patterns:
        try:
            re.compile(pattern.removeprefix(EXPRESSION) if pattern.startswith(EXPRESSION) else "")
        except re.error as error:
            return f"the expression {pattern!r} ({error})"
    return ""


def group_problem(group: ConfigGroup, file_format: str) -> str:
    """The unsupported setting of a group whose tensors are stored in `file_format`, or ""."""
    if file_format not in GROUP_FORMATS:
        return f"format {file_format!r}"
    weights, inputs = group.weights, group.input_activations
    kind = "float" if file_format in ("float-quantized", *FP4_FORMATS) else "int"
    if weights is None or weights.type != kind or weights.dynamic is not False:
        return f"weights that are not static {'floats' if kind == 'float' else 'integers'}"
    if group.output_activations is not None:
        return "output_activations"
    if file_format in ("int-quantized", "float-quantized"):
        return _w8a8_problem(weights, inputs, file_format)
    if file_format in FP4_FORMATS:
        return _fp4_problem(weights, file_format)
    if inputs is not None:
        return "input_activations with format 'pack-quantized'"
    if weights.num_bits not in (4, 8):
        return f"num_bits={weights.num_bits}"
    return "" if weights.strategy in ("group", "channel") else f"weight strategy {weights.strategy!r}"


def _fp4_problem(weights: Arguments, file_format: str) -> str:
    if weights.num_bits != 4 or not weights.symmetric:
        return f"{'symmetric' if weights.symmetric else 'asymmetric'} weights of {weights.num_bits} bits"
    if (weights.strategy, weights.group_size) != FP4_FORMATS[file_format]:
        return f"weights of {file_format!r} per {weights.strategy} of {weights.group_size}"
    return ""


def _w8a8_problem(weights: Arguments, inputs: Arguments | None, file_format: str) -> str:
    strategies = ("channel", "tensor", "block") if file_format == "float-quantized" else ("channel", "tensor")
    if weights.num_bits != 8 or not weights.symmetric or weights.strategy not in strategies:
        kind = "symmetric" if weights.symmetric else "asymmetric"
        return f"{kind} weights of {weights.num_bits} bits per {weights.strategy}"
    if weights.strategy == "block" and (weights.block_structure is None or min(weights.block_structure) < 1):
        return f"block_structure={weights.block_structure}"
    if inputs is None:
        return "" if weights.type == "float" else f"no input_activations with format {file_format!r}"
    if (inputs.num_bits, inputs.type, inputs.symmetric) != (8, weights.type, True):
        return f"{'symmetric' if inputs.symmetric else 'asymmetric'} {inputs.type}{inputs.num_bits} activations"
    used = ((True, "group"),) if weights.strategy == "block" else ((True, "token"), (False, "tensor"))
    if (inputs.dynamic, inputs.strategy) not in used:
        return f"{'dynamic' if inputs.dynamic else 'static'} activations per {inputs.strategy}"
    return ""

"""Tiny checkpoints in every quantized format, in the layouts of the formats' own tools.

The packers below were compared once with the tools themselves, bit for bit in both directions: compressed-tensors 0.20
(and 0.9.4 for activation order, which newer versions no longer write), AutoGPTQ 0.7.1 and AutoAWQ 0.2.9.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paged_serve.workers.backends.torch.quantized_linear import TorchGroupedLinear
from paged_serve.workers.layers.linear import TorchLinear

GROUP = 32
Packed = tuple[dict[str, Tensor], Tensor]  # tensors by the ending of their names, and the dequantized weights
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble i of a word holds the word's column AWQ_ORDER[i]


@dataclass(frozen=True)
class Format:
    """A format's function that packs a matrix, and its entry in config.json."""

    pack: Callable[[Tensor], Packed]
    config: dict[str, Any]
    ignored: tuple[str, ...] = ()  # projections that are not quantized


def words(values: np.ndarray, bits: int) -> Tensor:
    """Pack small values [m, n] as [m, n * bits / 32] int32: adjacent values in a word, the first in the lowest bits."""
    per_word = 32 // bits
    values = np.pad(values, ((0, 0), (0, -values.shape[1] % per_word)))
    packed = np.zeros((values.shape[0], values.shape[1] // per_word), np.uint32)
    for place in range(per_word):
        packed |= values[:, place::per_word].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(packed.view(np.int32))


def group_numbers(inputs: int, group_size: int, activation_order: bool) -> np.ndarray:
    """The group of each input; with activation order a group's inputs may be anywhere."""
    groups = np.arange(inputs) // group_size
    return np.random.default_rng(inputs).permutation(groups) if activation_order else groups


def quantize(
    weight: Tensor, groups: np.ndarray, bits: int, symmetric: bool, scale_dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [out, in] in 0..2^bits - 1, and each group's zero points and scales, which are rounded to their dtype."""
    values, top = weight.double().numpy(), 2**bits - 1
    zeros = np.full((len(values), groups.max() + 1), 2 ** (bits - 1))
    scales = np.zeros(zeros.shape)
    for group in range(groups.max() + 1):
        part = values[:, groups == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scales[:, group] = np.abs(part).max(1) / (top // 2) if symmetric else (high - low) / top
        if not symmetric:
            zeros[:, group] = np.clip(np.round(-low / scales[:, group]), 0, top)
    scales = torch.from_numpy(np.maximum(scales, 1e-6)).to(scale_dtype).double().numpy()
    codes = np.clip(np.round(values / scales[:, groups]) + zeros[:, groups], 0, top).astype(np.int64)
    return codes, zeros, scales


def meaning(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> Tensor:
    """The dequantized weights [out, in] float32."""
    return torch.from_numpy((codes - zeros[:, groups]) * scales[:, groups]).float()


def gptq(bits: int = 4, group: int = GROUP, symmetric: bool = True, desc_act: bool = False, v2: bool = False) -> Format:
    def pack(weight: Tensor) -> Packed:
        inputs = weight.shape[1]
        groups = group_numbers(inputs, inputs if group == -1 else group, desc_act)
        codes, zeros, scales = quantize(weight, groups, bits, symmetric, torch.float16)
        stored_zeros = zeros if v2 else (zeros - 1) % 2**bits
        tensors = {
            "qweight": words(codes, bits).t().contiguous(),
            "qzeros": words(stored_zeros.T, bits),
            "scales": torch.from_numpy(scales.T).half().contiguous(),
            "g_idx": torch.from_numpy(groups.astype(np.int32)),
        }
        return tensors, meaning(codes, zeros, scales, groups)

    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": desc_act}
    return Format(pack, {**settings, "checkpoint_format": "gptq_v2" if v2 else "gptq", "lm_head": False})


def awq() -> Format:
    def pack(weight: Tensor) -> Packed:
        groups = group_numbers(weight.shape[1], GROUP, False)
        codes, zeros, scales = quantize(weight, groups, 4, False, torch.float16)

        def in_awq_order(values: np.ndarray) -> Tensor:
            return words(values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER].reshape(values.shape), 4)

        scales_t = torch.from_numpy(scales.T).half().contiguous()
        tensors = {"qweight": in_awq_order(codes.T), "qzeros": in_awq_order(zeros.T), "scales": scales_t}
        return tensors, meaning(codes, zeros, scales, groups)

    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    return Format(pack, {**settings, "modules_to_not_convert": ["o_proj"]}, ignored=("o_proj",))


def pack_quantized(
    bits: int = 4, strategy: str = "group", symmetric: bool = True, actorder: str | None = None, old_zeros: bool = False
) -> Format:
    """The weight-only format of compressed-tensors; `old_zeros`: int8 zero points, as in older files."""

    def pack(weight: Tensor) -> Packed:
        outputs, inputs = weight.shape
        groups = group_numbers(inputs, GROUP if strategy == "group" else inputs, actorder == "group")
        codes, zeros, scales = quantize(weight, groups, bits, symmetric, torch.bfloat16)
        tensors = {
            "weight_packed": words(codes, bits),
            "weight_scale": torch.from_numpy(scales).bfloat16(),
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if not symmetric and old_zeros:
            tensors["weight_zero_point"] = torch.from_numpy((zeros - 2 ** (bits - 1)).astype(np.int8))
        elif not symmetric:
            tensors["weight_zero_point"] = words(zeros.T, bits).t().contiguous()
        if actorder == "group":
            tensors["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return tensors, meaning(codes, zeros, scales, groups)

    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "actorder": actorder}
    if strategy == "group":
        weights["group_size"] = GROUP
    return Format(pack, compressed_tensors_config("pack-quantized", weights, None))


def int_quantized(strategy: str = "channel") -> Format:
    def pack(weight: Tensor) -> Packed:
        peaks = weight.abs().amax(1, keepdim=True) if strategy == "channel" else weight.abs().amax().view(1)
        scales = (peaks / 127).bfloat16()
        codes = (weight.double() / scales.double()).round().clamp(-128, 127)
        return {"weight": codes.to(torch.int8), "weight_scale": scales}, (codes * scales.double()).float()

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return Format(pack, compressed_tensors_config("int-quantized", weights, inputs), ignored=("o_proj",))


def float_quantized(strategy: str = "channel") -> Format:
    """The e4m3 format, rounded by torch to nearest even."""

    def pack(weight: Tensor) -> Packed:
        peaks = weight.abs().amax(1, keepdim=True) if strategy == "channel" else weight.abs().amax().view(1)
        scales = (peaks / 448).bfloat16()
        codes = (weight.double() / scales.double()).clamp(-448, 448).float().to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scales}, codes.float() * scales.float()

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    return Format(pack, compressed_tensors_config("float-quantized", weights, inputs), ignored=("o_proj",))


def with_static_inputs(of: Format) -> Format:
    """A format of compressed-tensors with one scale per matrix, here a scalar, and one of its inputs."""

    def pack(weight: Tensor) -> Packed:
        packed, values = of.pack(weight)
        scales = {"weight_scale": packed["weight_scale"].view(()), "input_scale": torch.tensor(0.02)}
        return packed | scales, values

    group = of.config["config_groups"]["group_0"]
    inputs = group["input_activations"] | {"strategy": "tensor", "dynamic": False}
    config = of.config | {"config_groups": {"group_0": group | {"input_activations": inputs}}}
    return Format(pack, config, of.ignored)


def without_inputs(of: Format) -> Format:
    """A format of compressed-tensors whose activations are not quantized."""
    group = of.config["config_groups"]["group_0"] | {"input_activations": None}
    return Format(of.pack, of.config | {"config_groups": {"group_0": group}}, of.ignored)


def block_fp8(*block: int) -> Format:
    """e4m3 with a scale per block of rows and columns, as DeepSeek-V3 and Qwen3 are published."""

    def pack(weight: Tensor) -> Packed:
        rows, columns = (torch.arange(size) // step for size, step in zip(weight.shape, block, strict=True))
        scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
        for row, column in np.ndindex(*scales.shape):
            scales[row, column] = weight[rows == row][:, columns == column].abs().max() / 448
        whole = scales[rows][:, columns]
        codes = (weight / whole).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": scales}, codes.float() * whole

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": list(block)}
    return Format(pack, config, ignored=("o_proj",))


def block_float_quantized(*block: int) -> Format:
    """The same as llm-compressor's FP8_BLOCK."""
    of = block_fp8(*block)

    def pack(weight: Tensor) -> Packed:
        packed, values = of.pack(weight)
        return {"weight": packed["weight"], "weight_scale": packed["weight_scale_inv"]}, values

    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": list(block)}
    inputs = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": "group",
        "group_size": 128,
        "dynamic": True,
    }
    return Format(pack, compressed_tensors_config("float-quantized", weights, inputs), ignored=("o_proj",))


def matrix_fp8(scale: str, of_inputs: str, shape: tuple[int, ...]) -> Format:
    """e4m3 with a scale per matrix and one of its inputs, under these names and of this shape."""

    def pack(weight: Tensor) -> Packed:
        whole = weight.abs().max() / 448
        codes = (weight / whole).to(torch.float8_e4m3fn)
        scales = {scale: whole.reshape(shape), of_inputs: torch.full(shape, 0.02)}
        return {"weight": codes, **scales}, codes.float() * whole

    config = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    return Format(pack, config, ignored=("o_proj",))


def compressed_tensors_config(name: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    ignore = ["lm_head"] if name == "pack-quantized" else ["lm_head", "re:.*o_proj$"]
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
    }


W8A8: dict[str, Format] = {
    "ct-w8a8": int_quantized(),
    "ct-w8a8-tensor": int_quantized("tensor"),
    "ct-fp8": float_quantized(),
    "ct-fp8-tensor": float_quantized("tensor"),
    "ct-fp8-static": with_static_inputs(float_quantized("tensor")),
    "ct-w8a8-static": with_static_inputs(int_quantized("tensor")),
}
WEIGHT_ONLY: dict[str, Format] = {
    "ct-w4a16": pack_quantized(),
    "ct-w4a16-channel": pack_quantized(strategy="channel"),
    "ct-w4a16-asymmetric": pack_quantized(symmetric=False),
    "ct-w4a16-asymmetric-old": pack_quantized(symmetric=False, old_zeros=True),
    "ct-w4a16-actorder": pack_quantized(actorder="group"),
    "ct-w4a16-static-actorder": pack_quantized(actorder="static"),
    "ct-w8a16": pack_quantized(bits=8, strategy="channel"),
    "gptq": gptq(),
    "gptq-asymmetric": gptq(symmetric=False),
    "gptq-v2-asymmetric": gptq(symmetric=False, v2=True),
    "gptq-desc-act": gptq(desc_act=True),
    "gptq-desc-act-asymmetric": gptq(desc_act=True, symmetric=False),
    "gptq-channel": gptq(group=-1),
    "gptq-8": gptq(bits=8),
    "gptq-8-channel": gptq(bits=8, group=-1),
    "awq": awq(),
}
FORMATS = W8A8 | WEIGHT_ONLY
QUANTIZED, NOT_QUANTIZED = ("_proj", "indexer.wq_b", "indexer.wk"), ("indexer.weights_proj",)  # ends of names
BLOCKS: dict[str, Format] = {
    "fp8-128": block_fp8(128, 128),
    "fp8-16": block_fp8(16, 32),
    "ct-fp8-16": block_float_quantized(16, 32),
    "ct-fp8-only": without_inputs(float_quantized()),
    "ct-fp8-only-tensor": without_inputs(float_quantized("tensor")),
    "ct-fp8-only-16": without_inputs(block_float_quantized(16, 32)),
    "fp8-matrix": matrix_fp8("weight_scale_inv", "activation_scale", ()),  # as Ministral 3 is published
    "auto-fp8": matrix_fp8("weight_scale", "input_scale", (1,)),
}


def write_quantized(source: Path, folder: Path, form: str | Format) -> None:
    """Write the model of `source`, quantized as `form`, to `folder`, and its dequantized values to `folder`-float."""
    how, tensors = (FORMATS | BLOCKS)[form] if isinstance(form, str) else form, load_file(source / "model.safetensors")
    quantized, floats = dict[str, Tensor](), dict[str, Tensor]()
    for tensor_name, tensor in tensors.items():
        module, _, kind = tensor_name.rpartition(".")
        if kind == "weight" and module.endswith(QUANTIZED) and not module.endswith((*how.ignored, *NOT_QUANTIZED)):
            packed, floats[tensor_name] = how.pack(tensor.float())
            quantized |= {f"{module}.{ending}": part for ending, part in packed.items()}
        else:
            quantized[tensor_name] = floats[tensor_name] = tensor
    config = json.loads((source / "config.json").read_text())
    write_folder(folder, quantized, {**config, "quantization_config": how.config})
    write_folder(folder.with_name(f"{folder.name}-float"), floats, config)


def unstack_experts(folder: Path) -> None:
    """Replace the tensors of experts [experts, in, out] by a matrix for each, as llm-compressor does with Llama 4."""
    tensors, separate = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    for name, tensor in tensors.items():
        experts, _, kind = name.rpartition(".")
        if kind not in ("gate_up_proj", "down_proj"):
            separate[name] = tensor
            continue
        kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
        for number, matrix in enumerate(tensor):
            for each, part in zip(kinds, matrix.t().chunk(len(kinds)), strict=True):
                separate[f"{experts}.{number}.{each}.weight"] = part
    write_folder(folder, separate, json.loads((folder / "config.json").read_text()))


def write_folder(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def edit(folder: Path, config: dict[str, Any] | None = None, **changes: Callable[[Tensor], Tensor | None]) -> None:
    """Change fields of the quantization's configuration, and all tensors with these endings of names ("__" is a dot).

    A change to None removes the tensor.
    """
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    whole["quantization_config"] |= config or {}
    path.write_text(json.dumps(whole))
    stored = load_file(folder / "model.safetensors")
    for ending, change in changes.items():
        names = [name for name in stored if name.endswith(ending.replace("__", "."))]
        assert names, f"no tensor ends in {ending}"
        for name in names:
            changed = change(stored.pop(name))
            if changed is not None:
                stored[name] = changed.contiguous()
    save_file(stored, folder / "model.safetensors")


def dequantized(linear: Any) -> Tensor:
    """The weights of a torch product, [out, in] float32."""
    if isinstance(linear, TorchLinear):
        return linear.weight.float()
    weights: Tensor = (linear if isinstance(linear, TorchGroupedLinear) else linear.weight).dequantized()
    return weights

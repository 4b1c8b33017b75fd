"""Rotary parameters of a GGUF file in the fields of config.json.

llama.cpp stores the frequencies that Llama 3.1 scales as divisors, one for each rotary pair, in rope_freqs.weight; the
divisors of longrope are in rope_factors_long.weight and rope_factors_short.weight.
"""

import math
from typing import Any

from paged_serve.protocol.gguf.metadata import shortest

from ..model import GgufModel
from .layers import FULL, SLIDING

FIRST_CONTEXTS = (8192, *(1 << power for power in range(6, 18) if power != 13))  # tokens; 8192 in Llama 3
LOW, HIGH = 1.0, 4.0  # frequency factors of all releases of Llama 3
CLOSE = 1e-4  # relative; divisors are computed in float32
UNTRUNCATED = ("gpt-oss",)  # the ends of yarn's ramp are not rounded to whole pairs
# What queries grow by beyond the original context; files of Mistral 4 do not say it, as the converter leaves it out.
GROWTHS = {"mistral3": 0.0, "mistral4": 0.1}
YARN_FIELDS = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def rope_fields(model: GgufModel, rotary_dim: int) -> dict[str, Any]:
    """rope_theta, and rope_scaling if there is any. Raises ConfigError for an unknown kind."""
    theta = model.number("rope.freq_base", 10000.0)
    if theta <= 1:
        raise model.refused(f"rope.freq_base={theta:g} must be above 1")
    scaling = _scaling(model, theta, rotary_dim)
    return {"rope_theta": theta} | ({"rope_scaling": scaling} if scaling else {})


def ropes_of_kinds(model: GgufModel, head_dim: int, kinds: list[str]) -> dict[str, Any]:
    """The rotary parameters of layers with full attention and of those with windows, which are not scaled."""
    rotary_dim = model.whole("rope.dimension_count", head_dim)
    full = rope_fields(model, rotary_dim)
    local_dim = model.whole("rope.dimension_count_swa", rotary_dim)
    ropes = {
        FULL: {"rope_type": "default", **full.get("rope_scaling", {}), "rope_theta": full["rope_theta"]},
        SLIDING: {"rope_type": "default", "rope_theta": model.number("rope.freq_base_swa", full["rope_theta"])},
    }
    for kind, dim in ((FULL, rotary_dim), (SLIDING, local_dim)):
        if not 0 < dim <= head_dim:
            raise model.refused(f"{dim} rotated elements of heads of {head_dim} are not supported")
        ropes[kind] |= {"partial_rotary_factor": dim / head_dim} if dim != head_dim else {}
    # The fields of all layers, which are not these, are taken back.
    nothing = {"rope_scaling": None, "rope_theta": None, "partial_rotary_factor": None}
    return {**nothing, "layer_types": kinds, "rope_parameters": {kind: ropes[kind] for kind in (FULL, SLIDING)}}


def _scaling(model: GgufModel, theta: float, rotary_dim: int) -> dict[str, Any] | None:
    kind = model.text("rope.scaling.type", "linear" if model.has("rope.scale_linear") else "none")
    if (divisors := model.floats("rope_freqs.weight")) is not None:
        return _by_divisors(model, theta, rotary_dim, divisors)
    long, short = model.floats("rope_factors_long.weight"), model.floats("rope_factors_short.weight")
    if long is not None and short is not None:
        return _longrope(model, list(map(shortest, short)), list(map(shortest, long)))
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise model.refused(f"its rope.scaling.type {kind!r} is not supported; none, linear, yarn and longrope are")
    factor = model.number("rope.scaling.factor", model.number("rope.scale_linear", 1.0))
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None
    context = model.whole("rope.scaling.original_context_length", model.whole("context_length"))
    known: dict[str, Any] = {
        theirs: model.number(f"rope.scaling.{ours}")
        for ours, theirs in YARN_FIELDS.items()
        if model.has(f"rope.scaling.{ours}")
    }
    if (times := model.number("rope.scaling.attn_factor", 1.0)) != 1.0:
        known["attention_factor"] = times * (1.0 + 0.1 * math.log(max(factor, 1.0)))
    if model.has("rope.scaling.yarn_attn_factor"):  # which newer converters write as config.json has it
        known["attention_factor"] = model.number("rope.scaling.yarn_attn_factor")
    if model.has("rope.scaling.yarn_log_multiplier"):  # of scores; that of rotated elements is then 1
        known |= _log_multiplier(model)
    if (usual := GROWTHS.get(model.architecture)) is not None:
        known["llama_4_scaling_beta"] = model.number("attention.temperature_scale", usual)
    if model.architecture in UNTRUNCATED:
        known["truncate"] = False
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context, **known}


def _log_multiplier(model: GgufModel) -> dict[str, float]:
    """DeepSeek's mscale_all_dim, of which files have a tenth; that of Mistral 3, whose mscale is 1."""
    multiplier = model.number("rope.scaling.yarn_log_multiplier")
    if model.architecture == "mistral3":
        return {"mscale": 1.0, "mscale_all_dim": multiplier} if multiplier else {}
    if model.architecture not in ("deepseek2", "deepseek32", "mistral4"):
        raise model.refused(f"rope.scaling.yarn_log_multiplier is not supported for {model.architecture}")
    multiplier = float(f"{10 * multiplier:.6g}")
    return {"mscale": multiplier, "mscale_all_dim": multiplier}


def _by_divisors(model: GgufModel, theta: float, rotary_dim: int, divisors: list[float]) -> dict[str, Any] | None:
    """Llama 3's scaling if the divisors are its; any others are given pair by pair, as longrope has them."""
    if len(divisors) != rotary_dim // 2 or not all(math.isfinite(each) and each > 0 for each in divisors):
        raise model.refused(f"rope_freqs.weight must have {rotary_dim // 2} numbers above 0")
    factor = shortest(max(divisors))
    if all(each == 1.0 for each in divisors):
        return None
    for context in FIRST_CONTEXTS:
        radii = (theta ** (2 * pair / rotary_dim) for pair in range(rotary_dim // 2))
        wanted = [_llama3_divisor(radius, factor, context) for radius in radii]
        if all(math.isclose(one, other, rel_tol=CLOSE) for one, other in zip(divisors, wanted, strict=True)):
            own: dict[str, Any] = {"low_freq_factor": LOW, "high_freq_factor": HIGH}
            return {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": context, **own}
    own = {"original_max_position_embeddings": model.whole("context_length"), "attention_factor": 1.0}
    return {"rope_type": "longrope", "short_factor": divisors, "long_factor": divisors, **own}


def _llama3_divisor(radius: float, factor: float, context: int) -> float:
    """The divisor of the frequency 1 / radius."""
    wavelength = 2 * math.pi * radius
    if wavelength < context / HIGH:
        return 1.0
    if wavelength > context / LOW:
        return factor
    smooth = (context / wavelength - LOW) / (HIGH - LOW)
    return 1 / ((1 - smooth) / factor + smooth)


def _longrope(model: GgufModel, short: list[float], long: list[float]) -> dict[str, Any]:
    """Divisors of each pair; the factor of attention only if it is not the one that follows from the lengths."""
    context = model.whole("context_length")
    original = model.whole("rope.scaling.original_context_length", context)
    if original < 2:
        raise model.refused(f"rope.scaling.original_context_length={original} must be at least 2")
    scaling = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
    }
    ratio = context / original
    usual = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    given = model.number("rope.scaling.attn_factor", usual)
    return scaling if math.isclose(given, usual, rel_tol=CLOSE) else {**scaling, "attention_factor": given}

"""The kernels that a server launches, selftest.cu, and the limits of their resources."""

import ctypes
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from paged_serve.workers.kernels import cuda
from paged_serve.workers.kernels.cuda.kernel import FOLDER, Kernel

TENSOR_CORES = ("HMMA", "LDSM", "LDGSTS")  # products, matrix loads and asynchronous copies
SOURCES = {str(path.relative_to(FOLDER)): path.read_text() for path in sorted(FOLDER.rglob("*.cu*"))}
STRUCTS = {  # the name of the struct of parameters of each kernel
    function: struct
    for source in SOURCES.values()
    for function, struct in re.findall(r"^KERNEL\((\w+), (\w+)\)", source, re.MULTILINE)
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of all variants of a kernel on all architectures; a multiprocessor has 65,536 registers."""

    registers: int
    instructions: tuple[str, ...] = ()  # instructions that must occur


# The blocks per multiprocessor that registers allow: 65536 / (threads * registers, rounded up to 8).
LIMITS = {
    "activation": Limits(40),  # 256 threads: 6
    "attention_merge": Limits(56),  # 128 threads: 9 blocks
    "attention_plan": Limits(48),  # a single block
    "cache_latents": Limits(48),  # 64 threads
    "cap_logits": Limits(24),  # 256 threads: 8
    "causal_conv": Limits(64),  # 128 threads: 8
    "clamped_gate": Limits(40),  # 256 threads: 6
    "combine_experts": Limits(56),  # 256 threads: 4
    "expert_product": Limits(128, TENSOR_CORES),  # 128 threads: 4
    "gated_delta": Limits(224),  # 128 threads: 2 with keys of 512; of 128: 4
    "gated_norm": Limits(64),  # 512 threads: 2
    "join_experts": Limits(48),  # 256 threads: 5
    "latent_attention": Limits(255, TENSOR_CORES),  # 256 threads: 1
    "layer_norm": Limits(48),  # 1,024 threads: 1; 512: 2
    "lora_expand": Limits(64),  # 128 threads: 8
    "lora_look_up": Limits(40),  # 128 threads: 12
    "lora_shrink": Limits(96),  # 128 threads: 5
    "mamba1_scan": Limits(248),  # 128 threads: 2 with more than 128 numbers per channel; with 16: 6
    "mamba2_scan": Limits(232),  # 128 threads: 2 with states of 512; of 128: 5
    "norm_parts": Limits(40),  # 128 threads: 12
    "place_experts": Limits(32),  # 256 threads: 8
    "paged_attention": Limits(255, TENSOR_CORES),  # also limited by variant, see below
    "quantize_rows": Limits(40),  # 512 threads: 3
    "rms_norm": Limits(40),  # 1,024 threads: 1; 512: 3
    "rotate_heads": Limits(40),  # 256 threads: 6
    "rope_kv_write": Limits(64),  # 512 threads: 2
    "route_experts": Limits(104),  # 128 threads: 4
    "sampler_adjust": Limits(32),  # 256 threads, like all sampler kernels: 8
    "sampler_count": Limits(32),
    "sampler_cut": Limits(48),
    "sampler_exclude": Limits(40),
    "sampler_draw": Limits(40),
    "sampler_gather": Limits(64),
    "sampler_rank": Limits(40),
    "sampler_scan": Limits(40),
    "selftest": Limits(32, TENSOR_CORES),
    "sigmoid_gate": Limits(32),  # 256 threads: 8
    "weigh_experts": Limits(32),  # 256 threads: 8
}


# The speed of paged attention depends on registers, so each variant has its own figure in the source's comment: KV,
# HEAD_DIM, then decode / prefill for each architecture.
OPTION_REGISTERS = 12  # additional registers of variants with ALiBi, bidirectional attention or attention chunks
SLACK_REGISTERS = 4  # tolerance for other releases of the same NVRTC
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100")
ATTENTION_REGISTERS = {
    (kv, int(head_dim), arch): dict(zip(("decode", "prefill"), map(int, pair.split("/")), strict=True))
    for kv, head_dim, figures in re.findall(
        r"^//   (bf16|fp8) +(\d+) +((?:\d+ / \d+ +){4})", SOURCES["attention/paged_attention.cu"], re.MULTILINE
    )
    for arch, pair in zip(ARCHITECTURES, re.findall(r"\d+ / \d+", figures), strict=True)
}


def registers_allowed(kernel: Kernel, arch: str) -> int:
    limit = LIMITS[kernel.function].registers
    if kernel.function != "paged_attention":
        return limit
    options = OPTION_REGISTERS if has_options(kernel) else 0
    return min(limit, attention_registers(kernel, arch) + options + SLACK_REGISTERS)


def has_options(kernel: Kernel) -> bool:
    """Whether the variant is one that the table does not list."""
    defines = dict(kernel.defines)
    return any(defines[name] for name in ("HAS_ALIBI", "IS_BIDIRECTIONAL", "ATTENTION_CHUNK"))


def attention_registers(kernel: Kernel, arch: str) -> int:
    """The number of registers of this variant in the table."""
    defines = dict(kernel.defines)
    shape = "decode" if defines["ROW_WARPS"] == 1 else "prefill"
    kv = "fp8" if defines["KV"] == "fp8" else "bf16"  # fp16 needs as many registers as bf16
    return ATTENTION_REGISTERS[kv, int(defines["HEAD_DIM"]), arch][shape]


def wrappers() -> Iterator[ModuleType]:
    """The modules that launch kernels, except the loader, which needs CuPy."""
    for module in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}."):
        if module.name.rpartition(".")[2] not in ("nvrtc", "launcher"):
            yield importlib.import_module(module.name)


def production_kernels(arch: str) -> list[Kernel]:
    """A few variants of the kernels of every wrapper; those for `arch` if they depend on the architecture."""
    found = []
    for wrapper in wrappers():
        if offer := getattr(wrapper, "production_kernels", None):
            found += offer(arch) if inspect.signature(offer).parameters else offer()
    return found


def title(kernel: Kernel) -> str:
    return "-".join([kernel.function, *(str(value) for _, value in kernel.defines), str(kernel.threads)])


def mirror(struct: str) -> type[ctypes.Structure]:
    """The Python class of a struct of parameters."""
    found = {value for wrapper in wrappers() for name, value in vars(wrapper).items() if name == struct}
    assert len(found) == 1, f"{struct} is in {len(found)} modules of {cuda.__name__}"
    return found.pop()

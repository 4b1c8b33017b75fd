"""Checks the requirements of our CUDA kernels; the checks take version numbers, so that tests need no GPU."""

import os
from pathlib import Path
from types import ModuleType

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

MIN_CAPABILITY = (8, 0)  # bfloat16, asynchronous copies
# Our kernels need no feature of the "a" architecture yet; it is the target because attention will need them.
NAMES = {(9, 0): "sm_90a"}


def cubin_folder(config: ModelConfig) -> Path:
    """The folder of compiled kernels. Raises ConfigError if it is below a home folder that is not known."""
    folder = os.path.expanduser(config.cache_dir or "~/.cache")
    if folder.startswith("~/"):
        raise ConfigError(f"compiled kernels are kept in {folder}, but this user has no home folder; give --cache-dir")
    return Path(folder) / "paged-serve" / "cubins"


def import_cupy(torch_cuda: str | None) -> ModuleType:
    """CuPy with its NVRTC. `torch_cuda` is torch.version.cuda. Raises ConfigError naming the extra to install."""
    try:
        import cupy

        cupy.cuda.nvrtc.getVersion()  # CuPy loads the library only here
    except (ImportError, RuntimeError) as error:
        extra = f"cuda{(torch_cuda or '13').partition('.')[0]}"
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"device=cuda needs CuPy and NVRTC ({reason}); torch here is built for CUDA {torch_cuda}, so "
            f"install paged-serve[{extra}], or use device=cpu"
        ) from error
    return cupy  # type: ignore[no-any-return]


def architecture(device: str, capability: tuple[int, int]) -> str:
    """NVRTC's name for the architecture of a `device` of this compute capability. Raises ConfigError below sm_80."""
    if capability < MIN_CAPABILITY:
        raise ConfigError(
            f"{device} is sm_{capability[0]}{capability[1]}; the kernels need sm_80 (Ampere) or later; "
            "use another GPU or device=cpu"
        )
    return NAMES.get(capability, f"sm_{capability[0]}{capability[1]}")


def check_compiler(arch: str, nvrtc: tuple[int, int], known: tuple[int, ...]) -> None:
    """Raises ConfigError unless `arch` is among the architectures `known` (90, 100) to this version of NVRTC."""
    number = int(arch.removeprefix("sm_").rstrip("a"))
    if number not in known:
        raise ConfigError(
            f"NVRTC {nvrtc[0]}.{nvrtc[1]} does not compile for {arch}, only for {', '.join(map(str, known))}; "
            "install a newer one: paged-serve[cuda13]"
        )


def check_driver(driver: int, nvrtc: tuple[int, int]) -> None:
    """Raises ConfigError if a `driver` (13000: CUDA 13.0) is too old for the binaries of this NVRTC.

    Binaries of a major version run on every driver of that version or a later one.
    """
    major, minor = driver // 1000, driver % 1000 // 10
    if major < nvrtc[0]:
        raise ConfigError(
            f"the NVIDIA driver is for CUDA {major}.{minor}, too old for kernels of NVRTC {nvrtc[0]}.{nvrtc[1]}, "
            f"which need {nvrtc[0]}.0 or later; update the driver or install paged-serve[cuda{major}]"
        )

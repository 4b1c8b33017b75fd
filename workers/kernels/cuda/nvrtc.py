"""Compiles kernels with NVRTC through CuPy's low-level interface, which needs no device, and caches cubins in files.

CuPy's RawModule(code=...) is not used: its cache ignores headers, it needs a device, and it adds options.
"""

import hashlib
import secrets
from contextlib import suppress
from pathlib import Path

from cupy.cuda import nvrtc

from paged_serve.protocol.errors import ConfigError

from .kernel import FOLDER, Kernel

# -fmad=false: a*b + c rounds as written (device.cuh). Without --use_fast_math and -ftz, subnormals are kept.
OPTIONS = ("-std=c++17", "-default-device", "-fmad=false")


def compile_cubin(kernel: Kernel, arch: str) -> bytes:
    """The binary of `kernel` for exactly `arch` (such as "sm_90a"). Raises RuntimeError with the compiler's log."""
    options = (*OPTIONS, *kernel.options, f"-arch={arch}", f"-I{FOLDER}")
    program = nvrtc.createProgram((FOLDER / kernel.file).read_text(encoding="utf-8"), kernel.file, (), ())
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program)) + b"\0"  # CuPy leaves out the last byte
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"{kernel.file} for {arch}: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)


class CubinCache:
    """Cubins by a key of all their inputs. Several processes may write to one folder concurrently."""

    def __init__(self, folder: Path):
        self._folder = folder
        names = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.cu*"))
        self._digest = hashlib.sha256(b"".join(name.encode() + b"\0" + (FOLDER / name).read_bytes() for name in names))

    def path(self, kernel: Kernel, arch: str) -> Path:
        """The file of the kernel's cubin, which is compiled now if it does not exist."""
        key = self._digest.copy()
        key.update(repr((kernel.file, kernel.options, OPTIONS, arch, nvrtc.getVersion())).encode())
        path = self._folder / f"{kernel.function}-{arch}-{key.hexdigest()[:32]}.cubin"
        if not path.exists():
            self._create(path, compile_cubin(kernel, arch))
        return path

    def _create(self, path: Path, cubin: bytes) -> None:
        # Random: the process ids of two containers that share the folder may be the same.
        temporary = path.with_suffix(f".{secrets.token_hex(8)}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(cubin)
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):  # a part of the file, if the disk is full
                temporary.unlink()
            raise ConfigError(
                f"no cubin can be written to {self._folder}: {error.strerror}; free space there or make it writable"
            ) from error

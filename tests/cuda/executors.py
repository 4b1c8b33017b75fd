"""The executors of kernels in tests: the emulator on CPU tensors, or a CUDA device.

`python -m tests.cuda.executors cuda` runs the check of every family of kernels, for example under compute-sanitizer.
"""

import sys
from pathlib import Path
from typing import Any

from paged_serve.workers.kernels.cuda.kernel import Launcher
from paged_serve.workers.kernels.cuda.launcher import CudaLauncher

from .emulated import EmulatorLauncher, Stats

CUBINS = Path(__file__).parents[2] / "build" / "cubins"
DEVICES = {"emulator": "cpu", "cuda": "cuda"}


class DeviceLauncher(CudaLauncher):
    stats = Stats()  # a device counts nothing


def launcher_of(executor: str) -> Any:
    """A Launcher for tensors on DEVICES[executor]."""
    return EmulatorLauncher() if executor == "emulator" else DeviceLauncher.for_current_device(CUBINS)


def device_of(launcher: Launcher) -> str:
    return DEVICES["emulator" if isinstance(launcher, EmulatorLauncher) else "cuda"]


def arch_of(launcher: Any) -> str:
    """The architecture for which kernels are compiled. The emulator has the shared memory of sm_90a."""
    return "sm_90a" if isinstance(launcher, EmulatorLauncher) else launcher.arch


def run_checks(launcher: Launcher, device: str) -> None:
    from .mutations.planted import check_of, families

    for family in families("checks"):
        print(family, flush=True)
        check_of(family)(launcher, device)


if __name__ == "__main__":
    run_checks(launcher_of(sys.argv[1]), DEVICES[sys.argv[1]])

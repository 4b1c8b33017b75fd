"""The executor of the kernels: `--executor emulator`, `cpu` (csrc/cpu, for tests marked cpu_kernels) or `cuda`.

The default is the first two. `pytest tests/cuda --executor cuda` runs the tests of the emulator on a device, and no
others.
"""

import pytest

from paged_serve.workers.kernels.cpu import library as cpu

from .emulated import SCHEDULES, EmulatorLauncher
from .executors import DEVICES, launcher_of
from .operations import CpuKernels

CPU_KERNELS = "csrc"  # in a test's id


def pytest_addoption(parser):
    parser.addoption("--executor", choices=[*DEVICES, "cpu"], help="runs the CUDA kernels, or those of csrc/cpu")


def executor_of(config):
    return config.getoption("--executor", None)  # undefined unless tests/cuda is an argument of pytest


def pytest_generate_tests(metafunc):
    """Parametrize by executor and schedule; devices and CPU kernels have no schedules.

    Three of the five schedules have each order and both times of copies, and make the fast run.
    """
    executor = executor_of(metafunc.config)
    more = [CPU_KERNELS] if metafunc.definition.get_closest_marker("cpu_kernels") and executor in (None, "cpu") else []
    if "scheduled" in metafunc.fixturenames:
        schedules = SCHEDULES if executor in (None, "emulator") else SCHEDULES[:1]
        schedules = [
            pytest.param(each, marks=pytest.mark.nightly) if place in (1, 3) else each
            for place, each in enumerate(schedules)
        ]
        metafunc.parametrize("scheduled", [*schedules, *more], indirect=True, ids=name_of)
    elif more:
        metafunc.parametrize("launcher", [SCHEDULES[0], *more], indirect=True, ids=name_of)


def name_of(schedule):
    return schedule if schedule == CPU_KERNELS else f"schedule{SCHEDULES.index(schedule)}"


def pytest_collection_modifyitems(config, items):
    executor = executor_of(config)
    if executor == "cuda":
        items[:] = [item for item in items if "device" in getattr(item, "fixturenames", ())]
    elif executor == "cpu":
        items[:] = [item for item in items if CPU_KERNELS in item.nodeid.partition("[")[2]]


@pytest.fixture(scope="session")
def device(pytestconfig):
    """The device of a launcher's tensors."""
    return DEVICES.get(executor_of(pytestconfig), "cpu")


@pytest.fixture(scope="session")
def on_device(pytestconfig):
    """The device's launcher; None for the emulator."""
    return launcher_of("cuda") if executor_of(pytestconfig) == "cuda" else None


@pytest.fixture(scope="session")
def cpu_kernels():
    """CPU kernels of the best built instruction set, on three threads, so that work is divided unevenly."""
    library = cpu.best_library()
    if library is None:
        pytest.skip("the kernels are not built: python setup.py build_ext --inplace")
    pool = cpu.Pool(library, [-1] * 3)
    yield CpuKernels(pool)
    pool.close()


def chosen(request, on_device, schedule):
    if schedule == CPU_KERNELS:
        return request.getfixturevalue("cpu_kernels")
    return on_device or EmulatorLauncher(schedule=schedule)


@pytest.fixture
def launcher(request, device, on_device):
    """The device, the emulator with its first schedule, or the CPU kernels."""
    return chosen(request, on_device, getattr(request, "param", SCHEDULES[0]))


@pytest.fixture
def scheduled(request, device, on_device):
    """The device, the emulator with every schedule in turn, or the CPU kernels."""
    return chosen(request, on_device, request.param)

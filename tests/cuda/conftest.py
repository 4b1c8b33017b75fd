"""`pytest tests/cuda --executor cuda` runs on a device what else the emulator runs, and nothing but that."""

import pytest

from .emulated import SCHEDULES, EmulatorLauncher
from .executors import DEVICES, launcher_of


def pytest_addoption(parser):
    parser.addoption("--executor", choices=list(DEVICES), default="emulator", help="who runs the CUDA kernels")


def executor_of(config):
    return config.getoption("--executor", "emulator")  # pytest does not know it where tests/cuda is no argument


def pytest_generate_tests(metafunc):
    """A device has no schedules to choose from."""
    if "scheduled" in metafunc.fixturenames:
        schedules = SCHEDULES if executor_of(metafunc.config) == "emulator" else SCHEDULES[:1]
        metafunc.parametrize("scheduled", schedules, indirect=True)


def pytest_collection_modifyitems(config, items):
    if executor_of(config) != "emulator":
        items[:] = [item for item in items if "device" in getattr(item, "fixturenames", ())]


@pytest.fixture(scope="session")
def device(pytestconfig):
    """Where a launcher's tensors are."""
    return DEVICES[executor_of(pytestconfig)]


@pytest.fixture(scope="session")
def on_device(pytestconfig):
    """The device's launcher, None for the emulator."""
    executor = executor_of(pytestconfig)
    return None if executor == "emulator" else launcher_of(executor)


@pytest.fixture
def launcher(device, on_device):
    """The device, or the emulator with its first schedule."""
    return on_device or EmulatorLauncher()


@pytest.fixture
def scheduled(request, device, on_device):
    """The device, or the emulator with every schedule in turn."""
    return on_device or EmulatorLauncher(schedule=request.param)

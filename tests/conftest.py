import faulthandler
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from .covering import PAIRS, VALUES, WHOLE, left_out

TEARDOWN_S = 300

# A shell starts background jobs with SIGINT ignored, and our servers would inherit that: they must not ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers of tests lose processes; their reports do not belong in the user's folder.
_STATE = tempfile.TemporaryDirectory(prefix="paged-serve-tests-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# Tiny models are made once for all processes of a run: those that this one starts inherit the variable.
if "PAGED_SERVE_TEST_CHECKPOINTS" not in os.environ:  # tests/workers/tiny_models/checkpoints.py
    _CHECKPOINTS = tempfile.TemporaryDirectory(prefix="paged-serve-checkpoints-")
    os.environ["PAGED_SERVE_TEST_CHECKPOINTS"] = _CHECKPOINTS.name


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's threads wait for each other in loops, which costs tests that run side by side more than it saves."""
    import torch  # not above: the process that only distributes the tests runs none

    torch.set_num_threads(1)


@pytest.fixture
def short_folder():
    """For TMPDIR: paths of sockets end at 100 bytes, and tmp_path may have most of them."""
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        yield Path(folder)


def pytest_addoption(parser):
    parser.addoption(
        "--cpu-isa",
        metavar="ISA",
        help="the instruction set whose CPU kernels tests/workers tests, or `all` in turn; by default the best, and "
        "all where a test is about single kernels",
    )
    parser.addoption(
        "--summation",
        choices=["auto", "dot", "tile"],
        default="auto",
        help="the order of sums of the CPU kernels where tests/workers tests whole models",
    )
    parser.addoption(
        "--products",
        choices=[WHOLE, PAIRS, VALUES],
        help="of tests with several parameters, before nightly: all, each pair of values, or each value; by default "
        "pairs where kernels are tested, and else values",
    )


def pytest_configure(config):
    asked = config.getoption("cpu_isa")
    if asked in (None, "all"):
        return
    from paged_serve.workers.kernels.cpu.library import runnable_isas

    if asked not in (runnable := runnable_isas()):
        raise pytest.UsageError(f"--cpu-isa {asked}: built for and run by this machine are {', '.join(runnable)}")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """What is imported and collected lives until the end: garbage collections in tests skip its millions of objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """Makes no items of nightly functions for a run without them: a seventh of all items, all to be deselected."""
    if not name.startswith("test") or not leaves_out_nightly(collector.config):
        return None
    of_function = any(mark.name == "nightly" for mark in getattr(obj, "pytestmark", ()))
    return [] if of_function or collector.get_closest_marker("nightly") else None


def leaves_out_nightly(config):
    """Whether -m has no nightly test; one that is named explicitly is an item all the same, for pytest to say so."""
    expression = config.option.markexpr
    is_left_out = "not nightly" in expression.split(" and ") and " or " not in expression
    return is_left_out and not any("::" in argument for argument in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the cases that --products omits as nightly; folders' own hooks have marked their nightly tests before."""
    early = [item for item in items if not item.get_closest_marker("nightly")]
    for item in left_out(early, config.getoption("products")):
        item.add_marker("nightly")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Ends a run that hangs in a teardown: pytest-timeout looks away as soon as a test has failed."""
    faulthandler.dump_traceback_later(TEARDOWN_S, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()

"""The report on the machine, and on a server without kernels."""

import json
import os
import subprocess
import sys
from copy import copy

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, ModelConfig
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.process import machine, rank_setup

from ..emulation.amx import is_emulated


@pytest.fixture
def without_libraries(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu, "FOLDER", tmp_path)
    cpu.runnable_isas.cache_clear()
    yield
    cpu.runnable_isas.cache_clear()


@pytest.mark.skipif("PAGED_SERVE_TEST_KERNELS" in os.environ, reason="a new process reports on the built libraries")
def test_the_report_names_the_built_kernels_and_those_in_use():
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    done = subprocess.run([sys.executable, "-m", machine.__name__], capture_output=True, text=True, check=True)
    rows = dict(json.loads(done.stdout))
    best = cpu.best_library()
    assert rows["kernels used"].startswith(f"{best.isa}: the best")
    assert rows["summation"].startswith(f"{cpu.summation_of(best)}: ")
    assert rows["instruction set"] == best.machine_isa
    assert best.isa in rows["kernels built"]
    assert "slow" not in rows
    assert machine.why_slow("auto") == machine.why_slow("portable") == ""


@pytest.mark.skipif(is_emulated, reason="conftest.py says that every library prefers tile order")
@pytest.mark.parametrize(("isa", "order", "other"), [("avx512", "dot", "tile"), ("amx", "tile", "dot")])
def test_the_report_names_the_order_of_sums_and_the_option_for_the_other(isa, order, other, monkeypatch):
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    library = copy(cpu.load_library("portable"))
    library.isa = isa
    monkeypatch.setattr(machine, "best_library", lambda: library)
    wanted = f"{order}: the faster order here; --summation {other} gives the bits of machines that use {other}"
    assert dict(machine.report())["summation"] == wanted


@pytest.fixture
def refuses_amx(monkeypatch, tmp_path):
    """A processor with AMX under a system that does not permit it, which every library here takes for one without."""
    if not cpu.runnable_isas() or cpu.load_library("portable").machine_isa == "amx":
        pytest.skip("the kernels are not built, or AMX is permitted")
    (tmp_path / "cpuinfo").write_text("model name\t: Xeon\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n")
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")


@pytest.mark.usefixtures("refuses_amx")
def test_refused_amx_is_logged_once_with_the_kernels_used_instead(caplog):
    for rank in (0, 1):
        assert rank_setup._library(Config(), rank) is cpu.best_library()
    used = cpu.best_library().isa
    assert caplog.messages == [
        "this process may not use the processor's AMX: arch_prctl is refused (a sandbox, or Linux before 5.16); "
        f"using the kernels for {used}; permit it, or give --cpu-isa {used}"
    ]
    assert "may not use the processor's AMX" in dict(machine.report())["instruction set"]


@pytest.mark.usefixtures("refuses_amx")
def test_an_instruction_set_that_was_chosen_is_used_without_a_warning(caplog):
    rank_setup._library(Config(model=ModelConfig(cpu_isa="portable")), 0)
    assert not caplog.messages


def test_a_server_configured_for_torch_is_advised_to_drop_that_option():
    assert machine.why_slow("torch").startswith("--cpu-isa torch: torch multiplies one row at a time, ")
    if cpu.runnable_isas():
        assert machine.remedy("torch") == "leave out --cpu-isa torch"


def test_without_built_kernels_the_remedy_is_one_command(without_libraries):
    rows = dict(machine.report())
    assert rows["kernels built"] == rows["kernels used"] == "none"
    assert rows["summation"] == "none: torch adds, row by row"
    assert rows["slow"].startswith("no CPU kernels were built: ")
    assert rows["remedy"] == machine.remedy("torch") == machine.install_command()


@pytest.mark.parametrize(
    ("direct_url", "source"),
    [
        (None, "paged-serve"),
        ({"url": "https://example.org/paged_serve.tar.gz"}, "paged-serve"),
        ({"url": "file:///src/my%20server", "dir_info": {}}, "'/src/my server'"),
        ({"url": "file:///src/server", "dir_info": {"editable": True}}, "--editable /src/server"),
        ({"url": "file:///tmp/paged_serve-0.1.0-py3-none-any.whl"}, "paged-serve"),
    ],
)
def test_the_remedy_reinstalls_from_the_original_source(direct_url, source, monkeypatch):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if direct_url is None else json.dumps(direct_url)

    monkeypatch.setattr(machine.metadata, "distribution", lambda name: Installed())
    wanted = f"apt-get install g++ && pip install --force-reinstall --no-deps --no-cache-dir {source}"
    assert machine.install_command() == wanted


def test_kernels_that_do_not_run_here_are_refused_with_those_that_do():
    runnable = ", ".join(cpu.runnable_isas())
    with pytest.raises(ConfigError, match=rf"^cpu_isa=none-such: .*; use one of auto, {runnable}, torch$"):
        cpu.best_library("none-such")

"""The wheel that takes no compiler to install."""

import hashlib
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import build_wheel
import pytest
from house import ROOT

from paged_serve.workers.kernels.cpu import library as cpu


def test_a_library_runs_where_its_newest_symbols_are():
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    least = build_wheel.least_manylinux(cpu.library_path("portable").read_bytes())
    assert least in build_wheel.NEWEST


def test_a_library_that_manylinux_lacks_is_refused(monkeypatch):
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    monkeypatch.setattr(build_wheel, "PROMISED", build_wheel.PROMISED - {"libstdc++.so.6"})
    with pytest.raises(SystemExit, match=r"needs \['libstdc\+\+.so.6'\], which manylinux does not guarantee"):
        build_wheel.least_manylinux(cpu.library_path("portable").read_bytes())


def test_a_wheel_without_one_of_the_libraries_is_not_made(tmp_path):
    built = tmp_path / "paged_serve-0.1.0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(built, "w") as archive:
        archive.writestr("paged_serve/csrc/_cpu_portable.so", b"")
    with pytest.raises(
        SystemExit, match=r"should contain .*_cpu_avx2.so.*, but contains \['paged_serve/csrc/_cpu_portable.so'\]"
    ):
        build_wheel.retagged(built, tmp_path)


def test_a_wheel_that_is_too_large_besides_the_demo_model_is_not_made(tmp_path, monkeypatch):
    built = tmp_path / "paged_serve-0.1.0-py3-none-linux_x86_64.whl"
    isas = runpy.run_path(str(ROOT / "setup.py"), run_name="flags")["FLAGS_BY_ISA"]
    size = 5 * len(isas)
    with zipfile.ZipFile(built, "w") as archive:
        for isa in isas:
            archive.writestr(f"paged_serve/csrc/_cpu_{isa}.so", b"12345")
        archive.writestr("paged_serve/demo_model/model.safetensors", b"123456789")
    monkeypatch.setattr(build_wheel, "MAX_BYTES", size - 1)
    with pytest.raises(SystemExit, match=f"has {size} bytes besides the demo model, more than {size - 1}"):
        build_wheel.retagged(built, tmp_path)


def test_the_record_names_every_file_with_its_hash():
    record = build_wheel.record_of({"a.py": b"x", "RECORD": b"old"}, "RECORD").decode()
    digest = hashlib.sha256(b"x").digest()
    assert record.splitlines() == [
        f"a.py,sha256={build_wheel.base64.urlsafe_b64encode(digest).decode()[:-1]},1",
        "RECORD,,",
    ]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_an_installed_wheel_answers_as_the_source_does(tmp_path):
    """Compiles everything, and downloads setuptools."""
    script = [sys.executable, str(ROOT / "scripts/build_wheel.py"), "--into", str(tmp_path)]
    subprocess.run(script, check=True)
    (wheel,) = tmp_path.glob("*-py3-none-manylinux_2_*_x86_64.whl")
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True)
    assert answer(target, "auto") == answer(ROOT, "auto")
    assert answer(target, "portable") == answer(ROOT, "portable")


def answer(folder: Path, isa: str) -> str:
    """The output of the package in `folder` for a prompt."""
    command = [sys.executable, "-P", "-m", "paged_serve", "complete", "--cpu-isa", isa]
    variables = {**os.environ, "PYTHONPATH": str(folder)}
    prompt = ["-p", "The capital of France is", "--temperature", "0", "--max-tokens", "8"]
    done = subprocess.run([*command, *prompt], cwd="/", env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip(), done.stderr
    return done.stdout


@pytest.mark.skipif(not cpu.runnable_isas(), reason="the kernels are not built")
def test_an_editable_install_builds_the_kernels_that_this_processor_runs():
    setup = runpy.run_path(str(ROOT / "setup.py"), run_name="flags")
    assert {isa for isa in setup["FLAGS_BY_ISA"] if setup["runs_here"](isa)} == set(cpu.runnable_isas())

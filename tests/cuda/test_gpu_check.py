"""scripts/gpu_check.py without a GPU: its parts, how it runs them, and the report of real results."""

import json
import re
import subprocess
import sys

import pytest
import torch
from gpu_check import LIMIT_S, NO_DEVICE, ROOT, Part, check, execute, figures_of, main, parts_for


def part(text: str, **changes) -> Part:
    settings = {"name": "part", "what": "what it does", "command": (sys.executable, "-c", text), "limit_s": 60}
    return Part(**settings | changes)


def test_a_dry_run_lists_every_part_with_its_command(capsys):
    assert main(["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [part.name for part in parts_for("cuda")]
    assert "selftest (at most 90 s): " in lines[0]
    assert lines[0].endswith("--executor cuda tests/cuda/kernels/test_selftest.py")


def test_all_parts_together_take_at_most_twenty_minutes():
    assert sum(part.limit_s for part in parts_for("cuda")) <= LIMIT_S


def test_every_program_that_can_use_a_device_is_a_part():
    """The kinds of check that need a GPU, and every program here that can use one."""
    commands = [" ".join(one.command) for one in parts_for("cuda")]
    for wanted in (
        "tests/cuda/kernels/test_selftest.py",
        "-q --timeout 0 -p no:cacheprovider --executor cuda -n 4 tests/cuda --deselect",
        "--device cuda recovery",
        *("--tool memcheck", "--tool racecheck", "parity", "determinism --quantization fp8 --kv-cache-dtype fp8"),
    ):
        assert any(wanted in command for command in commands), f"no part does {wanted}"
    programs = [path for path in (ROOT / "scripts").rglob("*.py") if path.name != "gpu_check.py"]
    on_a_device = [path.relative_to(ROOT) for path in programs if re.search(r'"--(executor|device)"', path.read_text())]
    assert len(on_a_device) >= 4
    for program in on_a_device:
        assert any(f"{program} " in command for command in commands), f"no part runs {program}"
    regimes = [one.command[-1] for one in parts_for("cuda") if "scripts/kernel_speed/bench_cuda.py" in one.command]
    assert set(regimes) == set(cases_of_bench_cuda())
    emulated = [one.name for one in parts_for("emulator")]
    assert emulated == [one.name for one in parts_for("cuda")]


def cases_of_bench_cuda() -> list[str]:
    """The measurements that scripts/kernel_speed/bench_cuda.py lists."""
    shown = subprocess.run(
        [sys.executable, ROOT / "scripts" / "kernel_speed" / "bench_cuda.py", "--help"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return re.search(r"\{(\w+(?:,\w+){2,})\}", shown)[1].split(",")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the parts would run")
def test_without_a_device_it_reports_that_runs_nothing_and_fails(tmp_path, capsys):
    assert main(["--out", str(tmp_path)]) == NO_DEVICE
    assert "torch finds no CUDA device, so nothing was run" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_every_program_that_a_part_runs_exists():
    for one in parts_for("cuda"):
        for word in one.command:
            assert not word.startswith(("scripts/", "tests/")) or (ROOT / word).exists(), word


def test_a_part_that_fails_hangs_or_cannot_run_is_recorded_and_the_next_one_starts(tmp_path):
    parts = [
        part("import sys; print('it broke'); sys.exit(3)", name="breaks"),
        part("import time; print('so far', flush=True); time.sleep(600)", name="hangs", limit_s=2),
        part("", name="missing", program="no-such-program"),
        part('print(\'[{"kernel": "k", "µs": 12.3456}]\')', name="works"),
    ]
    report = check(parts, "emulator", tmp_path)
    found = {record["name"]: record["outcome"] for record in report["parts"]}
    assert found == {"breaks": "failed", "hangs": "timed out", "missing": "not run", "works": "passed"}
    assert report["parts"][1]["output"] in ("so far\n", "")  # on a busy machine it may not have started
    assert json.loads((tmp_path / "gpu_check.json").read_text()) == report
    text = (tmp_path / "gpu_check.md").read_text()
    assert "it broke" in text
    assert "no-such-program was not found" in text
    assert "| kernel | µs |\n| --- | --- |\n| k | 12.3 |" in text


def test_parts_that_exceed_the_remaining_time_are_not_run(tmp_path):
    report = check([part("print(1)"), part("print(2)")], "emulator", tmp_path, limit_s=0)
    assert [record["outcome"] for record in report["parts"]] == ["not run", "not run"]


def test_a_program_that_ignores_sigterm_is_killed():
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    outcome, output = execute((sys.executable, "-c", program), 3)
    assert outcome == "timed out"
    assert output in ("deaf\n", "")  # a busy machine may not have started it yet


def test_a_terminated_part_keeps_the_figures_it_had():
    assert figures_of('[{"a": 1}]\n[{"a": 1}, {"b": 2}]\nwarning: [\n[{"a"') == [{"a": 1}, {"b": 2}]


@pytest.mark.nightly
def test_paged_serve_and_transformers_generate_the_same_number_of_tokens(tmp_path):
    assert main(["--executor", "emulator", "--only", "throughput", "--out", str(tmp_path)]) == 0
    (record,) = json.loads((tmp_path / "gpu_check.json").read_text())["parts"]
    ours, theirs, ratio = record["figures"]
    assert ours["system"] == "paged-serve"
    assert theirs["system"].startswith("transformers 5.")
    assert ratio["tok/s"] == pytest.approx(ours["tok/s"] / theirs["tok/s"])


def test_a_part_finds_packages_where_this_process_finds_them(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    outcome, output = execute((sys.executable, "-c", "import sys; print(sys.path[1:3])"), 30)
    assert (outcome, output) == ("passed", f"{[str(ROOT), '/elsewhere']}\n")


@pytest.mark.nightly
def test_steps_of_a_whole_model_are_measured(tmp_path):
    assert main(["--executor", "emulator", "--only", "model", "--out", str(tmp_path)]) == 0
    (record,) = json.loads((tmp_path / "gpu_check.json").read_text())["parts"]
    assert [row["weights, cache"] for row in record["figures"]] == ["bfloat16"] * 3 + ["float8_e4m3fn"] * 3


@pytest.mark.parametrize("output", ["", "no figures\n", '{"not": "a list"}\n', "[1"])
def test_output_without_figures_gives_none(output):
    assert figures_of(output) == []


def test_a_part_that_the_emulator_ran_has_a_report(tmp_path):
    assert main(["--executor", "emulator", "--only", "launch", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["commit"]
    assert report["libraries"]["torch"]
    (record,) = report["parts"]
    assert [row["kernel"] for row in record["figures"]] == ["rms_norm through the launcher", "torch add, in place"]
    text = (tmp_path / "gpu_check.md").read_text()
    assert "a trial run on the CPU: the figures mean nothing" in text
    assert "| launch | passed |" in text
    assert "## CPU time of a kernel launch\n" in text
    assert "| rms_norm through the launcher |" in text


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "everything"])
    assert "known: selftest, kernels" in capsys.readouterr().err

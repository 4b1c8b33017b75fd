"""scripts/gpu_check.py as far as it goes without a GPU: its parts, how it runs them, the report of real results."""

import json
import sys

import pytest
from gpu_check import LIMIT_S, ROOT, Part, check, execute, figures_of, main, parts_for


def part(text: str, **changes) -> Part:
    settings = {"name": "part", "what": "what it does", "command": (sys.executable, "-c", text), "limit_s": 60}
    return Part(**settings | changes)


def test_a_dry_run_lists_every_part_with_its_command(capsys):
    assert main(["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [part.name for part in parts_for("cuda")]
    assert "selftest (at most 90 s): " in lines[0]
    assert lines[0].endswith("--executor cuda tests/cuda/test_selftest.py")


def test_all_parts_together_take_at_most_twenty_minutes():
    assert sum(part.limit_s for part in parts_for("cuda")) <= LIMIT_S


def test_every_program_of_ours_that_a_part_runs_is_there():
    for one in parts_for("cuda"):
        for word in one.command:
            assert not word.startswith(("scripts/", "tests/")) or (ROOT / word).exists(), word


def test_what_fails_hangs_or_cannot_run_is_noted_and_the_next_begins(tmp_path):
    parts = [
        part("import sys; print('it broke'); sys.exit(3)", name="breaks"),
        part("import time; print('so far', flush=True); time.sleep(600)", name="hangs", limit_s=2),
        part("", name="missing", program="no-such-program"),
        part('print(\'[{"kernel": "k", "µs": 12.3456}]\')', name="works"),
    ]
    report = check(parts, "emulator", tmp_path)
    found = {record["name"]: record["outcome"] for record in report["parts"]}
    assert found == {"breaks": "failed", "hangs": "timed out", "missing": "not run", "works": "passed"}
    assert report["parts"][1]["output"] in ("so far\n", "")  # a busy machine may not have begun it
    assert json.loads((tmp_path / "gpu_check.json").read_text()) == report
    text = (tmp_path / "gpu_check.md").read_text()
    assert "it broke" in text
    assert "there is no no-such-program" in text
    assert "| kernel | µs |\n| --- | --- |\n| k | 12.3 |" in text


def test_parts_that_the_time_does_not_suffice_for_are_not_run(tmp_path):
    report = check([part("print(1)"), part("print(2)")], "emulator", tmp_path, limit_s=0)
    assert [record["outcome"] for record in report["parts"]] == ["not run", "not run"]


def test_a_program_that_does_not_end_when_asked_is_ended():
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    outcome, output = execute((sys.executable, "-c", program), 3)
    assert outcome == "timed out"
    assert output in ("deaf\n", "")  # a busy machine may not have started it yet


@pytest.mark.parametrize("output", ["", "no figures\n", '{"not": "a list"}\n', "[1"])
def test_output_without_figures_has_none(output):
    assert figures_of(output) == []


def test_the_report_of_a_part_that_the_emulator_ran(tmp_path):
    assert main(["--executor", "emulator", "--only", "launch", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert report["commit"]
    assert report["libraries"]["torch"]
    (record,) = report["parts"]
    assert [row["kernel"] for row in record["figures"]] == ["rms_norm through the launcher", "torch add, in place"]
    text = (tmp_path / "gpu_check.md").read_text()
    assert "a rehearsal on the CPU: figures mean nothing" in text
    assert "| launch | passed |" in text
    assert "## What a launch costs the CPU\n" in text
    assert "| rms_norm through the launcher |" in text


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "everything"])
    assert "there are selftest, kernels" in capsys.readouterr().err

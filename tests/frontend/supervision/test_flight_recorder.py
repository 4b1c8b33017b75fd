"""The bundle written when a process is lost, and the diagnosis of `paged-serve doctor`."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from paged_serve.frontend.cli.doctor import list_reports
from paged_serve.frontend.cli.main import cli
from paged_serve.frontend.supervision.flight_recorder.bundle import (
    MAX_BUNDLES,
    Bundle,
    ProcessReport,
    ThreadReport,
    bundles_in,
    dump_folder,
    read_bundle,
    write_bundle,
)
from paged_serve.frontend.supervision.flight_recorder.diagnosis import diagnosis, everything
from paged_serve.frontend.supervision.flight_recorder.process_view import memory_of, threads_of
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

from ...workers.tier.accidents import full_disk

STEPS = (
    "step sent n=7 t=99.0 tokens=64 rows=64 chunks=0 admitted=0 running=64 waiting=3 free=10 blocks=100 cached=5",
    "step answered n=7 t=99.0 computed_s=0.00400",
    "step sent n=8 t=99.5 tokens=65 rows=64 chunks=1 admitted=1 running=65 waiting=2 free=9 blocks=100 cached=5",
)
STACKS = """Thread 0x2 (most recent call first):
  File "/a.py", line 1 in elsewhere

Current thread 0x1 (most recent call first):
  File "/b.py", line 22 in stuck
  File "/c.py", line 3 in main
"""


def report(name: str, **changes) -> ProcessReport:
    thread = ThreadReport("python", "S", "futex_wait_queue")
    made = ProcessReport(name, 10, 3, "ready", 0.1, "", {"VmRSS": "204800 kB"}, (thread,), STACKS, STEPS)
    return msgspec.structs.replace(made, **changes)


def bundle(*processes: ProcessReport, **changes) -> Bundle:
    made = Bundle("worker 0 hangs", 100.0, "0.1", "a machine", msgspec.Raw(b"{}"), processes, ("once", "twice"))
    return msgspec.structs.replace(made, **changes)


def diagnosis_of(*processes: ProcessReport, **changes) -> str:
    return "\n".join(diagnosis(bundle(*processes, **changes)))


class TestBundles:
    def test_a_written_bundle_is_readable_by_this_user_alone(self, tmp_path):
        path = write_bundle(bundle(report("engine-core")), tmp_path / "new" / "dumps")
        assert read_bundle(path) == bundle(report("engine-core"))
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700

    def test_the_oldest_bundles_are_removed(self, tmp_path):
        (tmp_path / "precious.json").write_text("not ours")
        for second in range(MAX_BUNDLES + 5):
            write_bundle(bundle(written_at=float(second)), tmp_path)
        kept = [read_bundle(path).written_at for path in bundles_in(tmp_path)]
        assert kept == [float(second) for second in range(5, MAX_BUNDLES + 5)]
        assert (tmp_path / "precious.json").exists()

    def test_a_bundle_that_finds_no_space_leaves_no_file(self, tmp_path):
        with full_disk(100), pytest.raises(OSError, match="too large"):
            write_bundle(bundle(report("engine-core")), tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_two_bundles_of_one_second_are_two_files(self, tmp_path):
        assert [write_bundle(bundle(), tmp_path) for _ in range(3)] == bundles_in(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"format": 99}'])
    def test_a_file_that_is_not_a_bundle_is_refused_by_name(self, tmp_path, content):
        (tmp_path / "odd.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"odd\.json is not a report"):
            read_bundle(tmp_path / "odd.json")

    def test_a_missing_bundle_and_one_of_another_format_are_refused(self, tmp_path):
        with pytest.raises(ConfigError, match=r"cannot read .*absent"):
            read_bundle(tmp_path / "absent.json")
        with pytest.raises(ConfigError, match="has format 99"):
            read_bundle(write_bundle(bundle(format=99), tmp_path))

    def test_the_folder_is_the_configured_one_or_of_this_user_or_none(self, monkeypatch):
        monkeypatch.setenv("HOME", "/home/me")
        monkeypatch.setenv("XDG_STATE_HOME", "/state/mine")
        assert dump_folder("") == Path("/state/mine/paged-serve/dumps")
        monkeypatch.setenv("XDG_STATE_HOME", "relative")
        assert dump_folder("") == Path("/home/me/.local/state/paged-serve/dumps")
        monkeypatch.delenv("XDG_STATE_HOME")
        assert dump_folder("") == Path("/home/me/.local/state/paged-serve/dumps")
        assert dump_folder("/mine") == Path("/mine/paged-serve/dumps")
        assert dump_folder("none") is None


class TestDiagnosis:
    def test_a_sleeping_process_is_listed_with_its_silence_and_its_innermost_frames(self):
        text = diagnosis_of(report("worker 0", silence_s=2.25))
        assert "worker 0 (pid 10, epoch 3): ready, 200 MB; silent for 2.2 s; all 1 threads sleep" in text
        assert "the main one in futex_wait_queue" in text
        assert "at stuck (/b.py:22)" in text
        assert "elsewhere" not in text

    @pytest.mark.parametrize(
        ("state", "words"),
        [("T", "it is halted by a signal"), ("D", "it waits for a disk or a device"), ("R", "1 of 1 threads at work")],
    )
    def test_every_thread_state_has_its_description(self, state, words):
        assert words in diagnosis_of(report("worker 0", threads=(ThreadReport("python", state),)))

    def test_a_dead_process_is_listed_with_its_end_and_its_fault(self):
        fault = "Fatal Python error: Segmentation fault\n\n" + STACKS
        text = diagnosis_of(
            report("worker 0", state="dead", threads=(), memory={}, end="killed by SIGSEGV", stacks=fault)
        )
        assert "dead; it had ended\n    killed by SIGSEGV\n    at Fatal Python error: Segmentation fault" in text
        assert "at stuck (/b.py:22)" in text

    def test_the_step_in_flight_is_listed_with_the_usual_step_time(self):
        text = diagnosis_of(report("engine-core"))
        assert "step 8 was sent 0.50 s before and not answered: 65 tokens, 64 rows that decode, 1 chunks" in text
        assert "the 1 before took 0.0040 s each (median), 0.0040 s at most" in text
        assert "65 sequences ran and 2 waited" in text

    def test_a_core_without_open_steps_is_reported_as_such(self):
        assert "all were answered; the last one was 7" in diagnosis_of(report("engine-core", lines=STEPS[:2]))

    def test_the_audit_or_its_absence_is_reported(self):
        state = b'{"audit": "%s", "blocks": {"free": 1, "total": 9, "cached": 2}, "running": [{"blocks": 4}]}'
        assert "the audit finds nothing wrong" in diagnosis_of(core_state=msgspec.Raw(state % b""))
        assert "1 of 9 free" in diagnosis_of(core_state=msgspec.Raw(state % b""))
        assert "the audit finds: block 3 has two owners" in diagnosis_of(
            core_state=msgspec.Raw(state % b"block 3 has two owners")
        )
        assert "9 of 100 were free at the last step" in diagnosis_of(report("engine-core"))

    def test_torn_or_unknown_lines_are_skipped(self):
        lines = ("tep sent n=1", "step sent n=", "step sent n=1 t=x", "step answered n=5", "step sent n=9 t=1.0", "")
        assert "the core had sent none" in diagnosis_of(report("engine-core", lines=lines, stacks="Current thread"))

    def test_the_full_report_has_the_stacks_and_the_lines(self):
        text = "\n".join(everything(bundle(report("engine-core"))))
        assert "elsewhere" in text
        assert STEPS[0] in text


class TestKernelView:
    def test_a_process_is_described_from_outside(self):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            assert threads_of(process.pid)[0].state in ("R", "S", "D")
            assert memory_of(process.pid)["Threads"] == "1"
        finally:
            process.kill()
            process.communicate()
        assert threads_of(process.pid) == ()
        assert memory_of(process.pid) == {}


class TestCommand:
    def doctor(self, *arguments: str, **environment: str) -> str:
        result = CliRunner().invoke(cli, ["doctor", *arguments], env=environment)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def test_an_unreadable_bundle_does_not_hide_the_others(self, tmp_path, capsys):
        paths = [write_bundle(bundle(report("engine-core")), tmp_path) for _ in range(2)]
        paths[0].write_text("{}")
        list_reports(tmp_path)
        list_reports(None)
        first, second, third = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{paths[0]} is not a report")
        assert second.startswith(f"{paths[1]}  ")
        assert "turned off" in third

    def test_the_command_lists_the_bundles_and_reads_one(self, tmp_path, monkeypatch):
        assert "no reports in" in self.doctor("--dump-dir", str(tmp_path))
        monkeypatch.setattr("paged_serve.frontend.cli.doctor.show_machine", lambda: None)  # it imports torch
        config = msgspec.Raw(Config().for_print().encode())
        path = write_bundle(bundle(report("engine-core"), config=config), dump_folder(str(tmp_path)))
        listed = self.doctor(PAGED_SERVE_DUMP_DIR=str(tmp_path))
        assert str(path) in listed
        assert "worker 0 hangs" in listed
        assert "step 8 was sent" in self.doctor(str(path))
        assert "elsewhere" in self.doctor(str(path), "--stacks")

    def test_a_file_that_is_not_a_bundle_gives_a_one_line_error(self, tmp_path):
        (tmp_path / "odd.json").write_text("?")
        command = [sys.executable, "-m", "paged_serve", "doctor", str(tmp_path / "odd.json")]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert refused.stderr.startswith("paged-serve: ")
        assert len(refused.stderr.splitlines()) == 1

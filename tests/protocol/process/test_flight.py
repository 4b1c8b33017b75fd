"""The flight record of a process can be read after its death."""

import random
import signal
import subprocess
import sys

import pytest

from paged_serve.protocol.process.flight_record import (
    FLIGHT_DIR,
    RING_BYTES,
    STACKS_SIGNAL,
    LineRing,
    flight_path,
    read_lines,
)

PROGRAM = """
import logging, os, signal, sys, time
from paged_serve.protocol.process.flight_record import record_flight
flight = record_flight(sys.argv[1], "worker-0")
flight.note("a note")
logging.getLogger("paged_serve.anything").warning("a line\\nof two")
print(flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_ring_holds_the_last_lines_whole_and_in_order(tmp_path, seed):
    rng, ring, lines = random.Random(seed), LineRing(tmp_path / "ring"), []
    for number in range(rng.randrange(1, 4000)):
        lines.append(f"{number} " + "ä" * rng.randrange(100))
        ring.add(lines[-1])
        if rng.random() < 0.01:
            kept = read_lines(tmp_path / "ring")
            assert kept == lines[-len(kept) :]
    kept = read_lines(tmp_path / "ring")
    assert kept == lines[-len(kept) :]
    assert len(kept) == len(lines) or sum(len(line.encode()) + 1 for line in kept) > RING_BYTES - 1000
    assert (tmp_path / "ring").stat().st_mode & 0o777 == 0o600


def test_a_line_longer_than_the_ring_is_cut(tmp_path):
    ring = LineRing(tmp_path / "ring")
    ring.add("x" * 10 * RING_BYTES)
    ring.add("short")
    assert read_lines(tmp_path / "ring")[1:] == ["short"]


def test_a_process_that_cannot_record_runs_without_a_record(tmp_path):
    program = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))" + PROGRAM
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.send_signal(STACKS_SIGNAL)
    process.communicate("\n", timeout=60)
    assert process.returncode == -signal.SIGSEGV  # sent by the process itself
    assert list((tmp_path / FLIGHT_DIR).iterdir()) == []


def test_a_ring_allocates_all_of_its_space_when_created(tmp_path):
    LineRing(tmp_path / "ring")
    assert (tmp_path / "ring").stat().st_blocks * 512 >= RING_BYTES


def test_a_missing_file_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "absent") == []


def test_lines_and_stacks_survive_the_process_and_asking_for_stacks_does_not_end_it(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    stacks = flight_path(str(tmp_path), "worker-0", process.pid, "stacks")
    process.send_signal(STACKS_SIGNAL)
    while b"readline" not in stacks.read_bytes() and b"<module>" not in stacks.read_bytes():
        assert process.poll() is None
    assert process.poll() is None
    process.communicate("\n", timeout=60)
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in stacks.read_text()
    note, line = read_lines(flight_path(str(tmp_path), "worker-0", process.pid, "lines"))
    assert note == "a note"
    assert line.endswith("WARNING a line\\nof two")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / FLIGHT_DIR).iterdir()} == {0o600}

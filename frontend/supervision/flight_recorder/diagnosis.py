"""The summary of a bundle of the flight recorder, as text."""

import re
import statistics
import time
from typing import Any

import msgspec

from .bundle import Bundle, ProcessReport, ThreadReport

SILENT_S = 0.6  # loops send a heartbeat every 250 ms
LATEST_EVENTS = 12
LATEST_FRAMES = 6
_STATES = {
    "T": "is halted by a signal",
    "t": "is held by a debugger",
    "D": "waits for a disk or a device",
    "Z": "has ended",
}


def diagnosis(bundle: Bundle) -> list[str]:
    """A readable summary: the reason, each process, the steps, the blocks, the preceding events."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(bundle.written_at))
    lines = [f"{when}: {bundle.reason}", f"paged-serve {bundle.version}, {bundle.platform}", "", "Processes"]
    for process in bundle.processes:
        lines += _process(process)
    lines += ["", "Steps", *(f"  {line}" for line in _steps(bundle)), "", "Blocks"]
    lines += [f"  {line}" for line in _blocks(bundle)]
    lines += ["", "Before", *(f"  {event}" for event in bundle.events[-LATEST_EVENTS:])]
    return lines


def everything(bundle: Bundle) -> list[str]:
    """All stacks and all lines."""
    lines = []
    for process in bundle.processes:
        lines += ["", f"{process.name} (pid {process.pid}): stacks", process.stacks or "none"]
        lines += [f"{process.name}: lines", *process.lines]
    return lines


def _process(process: ProcessReport) -> list[str]:
    resident = process.memory.get("VmRSS", "").removesuffix(" kB")
    memory = f", {int(resident) // 1024} MB" if resident.isdigit() else ""
    lines = [f"  {process.name} (pid {process.pid}, epoch {process.epoch}): {process.state}{memory}; {_doing(process)}"]
    if process.end:
        lines.append(f"    {process.end}")
    return lines + [f"    at {frame}" for frame in _frames(process)]


def _doing(process: ProcessReport) -> str:
    if process.state == "dead":
        return "it had ended"
    if not process.threads:
        return "the kernel no longer knew it"
    main = process.threads[0]
    silence = f"silent for {process.silence_s:.1f} s" if process.silence_s > SILENT_S else "spoke lately"
    if main.state in _STATES:
        return f"{silence}; it {_STATES[main.state]}"
    at_work = [thread for thread in process.threads if thread.state in ("R", "D")]
    if at_work:
        return f"{silence}; {len(at_work)} of {len(process.threads)} threads at work"
    return f"{silence}; all {len(process.threads)} threads sleep{_where(main)}"


def _where(thread: ThreadReport) -> str:
    return f", the main one in {thread.waits_in}" if thread.waits_in else ""


def _frames(process: ProcessReport) -> list[str]:
    """The innermost frames of the thread that the interpreter calls the current one, or of its main thread."""
    fatal = [line for line in process.stacks.splitlines() if line.startswith("Fatal Python error")]
    _, _, current = process.stacks.rpartition("Current thread")
    if not current:
        return fatal
    frames = re.findall(r'^  File "(.*?)", line (\d+) in (\S+)', current.split("\n\n")[0], re.MULTILINE)
    return fatal + [f"{function} ({path}:{line})" for path, line, function in frames[:LATEST_FRAMES]]


def _steps(bundle: Bundle) -> list[str]:
    """The steps in flight and the durations of earlier steps, from the core's lines."""
    sent, answered = _step_lines(bundle, "sent"), _step_lines(bundle, "answered")
    if not sent:
        return ["the core had sent none"]
    numbers = {step["n"] for step in answered}
    open_steps = [step for step in sent if step["n"] > max(numbers, default=0)]
    lines = []
    for step in open_steps:
        lines.append(
            f"step {step['n']:.0f} was sent {bundle.written_at - step['t']:.2f} s before and not answered: "
            f"{step['tokens']:.0f} tokens, {step['rows']:.0f} rows that decode, {step['chunks']:.0f} chunks, "
            f"{step['admitted']:.0f} admitted"
        )
    if not open_steps:
        lines.append(f"all were answered; the last one was {sent[-1]['n']:.0f}")
    if durations := [step["computed_s"] for step in answered]:
        lines.append(
            f"the {len(durations)} before took {statistics.median(durations):.4f} s each (median), "
            f"{max(durations):.4f} s at most"
        )
    last = sent[-1]
    lines.append(f"{last['running']:.0f} sequences ran and {last['waiting']:.0f} waited")
    return lines


def _step_lines(bundle: Bundle, kind: str) -> list[dict[str, float]]:
    """The figures of each step of the latest core, by name."""
    cores = [process for process in bundle.processes if process.name == "engine-core"]
    lines = [line for line in (cores[-1].lines if cores else ()) if line.startswith(f"step {kind} n=")]
    found = [{name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)(?= |$)", line)} for line in lines]
    needed = {"n", "t"} | ({"computed_s"} if kind == "answered" else {"tokens", "running", "free", "blocks"})
    return [step for step in found if needed <= step.keys()]


def _blocks(bundle: Bundle) -> list[str]:
    state: dict[str, Any] = msgspec.json.decode(bundle.core_state)
    lines = []
    if "audit" in state:
        blocks = state.get("blocks", {})
        free, total, cached = (blocks.get(name) for name in ("free", "total", "cached"))
        lines.append(f"{free} of {total} free; {cached} of all hold what a prefix may share")
        owned = sum(sequence.get("blocks", 0) for sequence in state.get("running", []))
        lines.append(
            f"the first {len(state.get('running', []))} sequences that run own {owned} (shared ones count for each)"
        )
        lines.append(f"the audit finds: {state['audit']}" if state["audit"] else "the audit finds nothing wrong")
    elif sent := _step_lines(bundle, "sent"):
        lines.append(
            f"{sent[-1]['free']:.0f} of {sent[-1]['blocks']:.0f} were free at the last step; they could not be audited"
        )
    else:
        lines.append("nothing is known")
    return lines

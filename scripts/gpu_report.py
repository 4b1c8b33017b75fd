"""The readable report of gpu_check.py: the machine, the outcomes, the figures as tables, and the output of failures."""

import importlib.metadata
import shutil
import subprocess
from typing import Any

import torch

from paged_serve.frontend.bench.report.report import environment
from paged_serve.frontend.bench.report.tables import number

OUTPUT_LINES = 30  # last lines shown of a part that failed


def machine_facts() -> dict[str, Any]:
    """Date, commit and machine; the device, its driver, and the libraries that use it."""
    return {
        **environment(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "driver": driver_version(),
        "libraries": {name: version(name) for name in ("torch", "cupy-cuda13x", "cupy-cuda12x", "transformers")}
        | {"CUDA of torch": torch.version.cuda or ""},
    }


def version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def driver_version() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().partition("\n")[0]


def markdown(report: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {found}" for name, found in report["libraries"].items() if found)
    device = report["device"] or "no device"
    if report["executor"] != "cuda":
        device += "; a trial run on the CPU: the figures mean nothing"
    lines = [
        f"# GPU check, {report['date']}",
        "",
        f"{device}. Commit {report['commit']}, driver {report['driver'] or 'none'}, {libraries}, "
        f"{report['machine']['cpu']}. {report['seconds']} s in all, by `python scripts/gpu_check.py`.",
        "",
        *table([summary(part) for part in report["parts"]]),
    ]
    for part in report["parts"]:
        if part["figures"]:
            lines += ["", f"## {part['what'][0].upper()}{part['what'][1:]}", "", *table(part["figures"])]
    for part in report["parts"]:
        if part["outcome"] in ("failed", "timed out"):
            tail = part["output"].splitlines()[-OUTPUT_LINES:]
            lines += [
                "",
                f"## {part['name']} {part['outcome']}",
                "",
                f"`{' '.join(part['command'])}`",
                "",
                "```",
                *tail,
                "```",
            ]
    return "\n".join(lines) + "\n"


def summary(part: dict[str, Any]) -> dict[str, Any]:
    lines = part["output"].strip().splitlines()
    last = "" if part["figures"] or not lines else lines[-1][:100].replace("|", "\\|")
    return {
        "part": part["name"],
        "outcome": part["outcome"],
        "seconds": part["seconds"],
        "what": part["what"],
        "": last,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The columns of all rows, in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name, "")) for name in columns] for row in rows]
    return [_line(columns), _line(["---"] * len(columns)), *map(_line, cells)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value) if abs(value) >= 1 else f"{value:.2g}"
    return str(value)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"

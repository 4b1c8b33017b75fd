"""`python -m paged_serve.workers.process.machine`: prints the CPU kernels that this machine uses, and why."""

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

from paged_serve.protocol.messages.config import ParallelConfig

from ..distributed.cpu_quota import quota_of_cpus
from ..distributed.threads import threads_of_rank, usable_cpus
from ..kernels.cpu.library import ISAS, Library, best_library, library_path, load_library, runnable_isas, summation_of

# The factor depends on the sizes of the model and of its steps; measured on AVX2 (docs/operations.md).
SLOWNESS = "torch multiplies one row at a time, 2 to 25 times slower than our kernels"
AMX_REFUSED = "this process may not use the processor's AMX: arch_prctl is refused (a sandbox, or Linux before 5.16)"
_CPUINFO = Path("/proc/cpuinfo")
_AMX = {"amx_tile", "amx_bf16", "amx_int8"}  # as Linux names what the kernels for AMX need besides AVX-512
_LARGE = 1 << 40  # bytes of weights, enough for a thread on every core


def why_slow(cpu_isa: str) -> str:
    """Why the configured `cpu_isa` uses no kernels on this CPU; "" if it uses them."""
    if cpu_isa == "torch":
        return f"--cpu-isa torch: {SLOWNESS}"
    return "" if runnable_isas() else f"no CPU kernels were built: {SLOWNESS}"


def is_amx_refused() -> bool:
    """Whether the processor has AMX, and the system withholds it from this process."""
    return (
        bool(runnable_isas())
        and load_library("portable").machine_isa != "amx"
        and set(_cpuinfo("flags").split()) >= _AMX
    )


def remedy(cpu_isa: str) -> str:
    """The command or the change of options that enables the kernels."""
    return "leave out --cpu-isa torch" if cpu_isa == "torch" and runnable_isas() else install_command()


def install_command() -> str:
    """The command that installs a compiler on Debian and reinstalls this package from its source."""
    source = "paged-serve"
    try:
        origin = json.loads(metadata.distribution("paged-serve").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = urlparse(origin.get("url", ""))
    if url.scheme == "file" and not url.path.endswith(".whl"):
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        source = editable + shlex.quote(unquote(url.path))
    # A wheel in pip's cache was built without a compiler as well.
    return f"apt-get install g++ && pip install --force-reinstall --no-deps --no-cache-dir {source}"


def report() -> list[tuple[str, str]]:
    """Labels and values of the first lines of `paged-serve doctor`."""
    built = [isa for isa in ISAS if library_path(isa).exists()]
    best = load_library("portable").machine_isa if "portable" in built else "unknown without a library"
    absent = [isa for isa in ISAS if isa not in built]
    libraries = ", ".join(built) or "none"
    fastest = best_library()
    taken = f"{fastest.isa}: the best that this machine runs" if fastest else "none"
    cpus, quota = usable_cpus(), quota_of_cpus()
    threads = threads_of_rank(ParallelConfig(), _LARGE, min(len(cpus), quota or len(cpus)))
    rows = [
        ("processor", _cpuinfo("model name") or "unknown"),
        ("instruction set", f"{best}; {AMX_REFUSED}" if is_amx_refused() else best),
        ("kernels built", libraries + (f"; not {', '.join(absent)}" if built and absent else "")),
        ("kernels used", taken),
        ("summation", _summation(fastest)),
        ("threads", f"up to {threads}: {len(cpus)} cores, quota {quota or 'none'}"),
    ]
    if slow := why_slow("auto"):
        rows += [("slow", slow), ("remedy", remedy("auto"))]
    return rows


def _summation(library: Library | None) -> str:
    """The order of 16-bit sums that a server uses by default, and the option that selects the other order."""
    if library is None:
        return "none: torch adds, row by row"
    order = summation_of(library)
    other = "tile" if order == "dot" else "dot"
    return f"{order}: the faster order here; --summation {other} gives the bits of machines that use {other}"


def _cpuinfo(field: str) -> str:
    """What Linux reports of the first processor; "" if it reports nothing of this name."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field), "")


if __name__ == "__main__":
    print(json.dumps(report()))

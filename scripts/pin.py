"""Writes constraints.txt: the exact version of every run-time dependency, direct or not, as pip resolves them today.

torch is left to its range: which build serves (CPU, which CUDA) is the machine's affair.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_PINNED = {"paged-serve", "torch"}
HEAD = "# Written by scripts/pin.py: what was tested together. pip install -c constraints.txt .\n"


def resolved() -> dict[str, str]:
    """Name to version, for this interpreter."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
        ".",
    ]
    report = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout)
    found = {
        item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in report["install"]
    }
    # What torch's CUDA build brings along is pinned by torch itself.
    return {
        name: v for name, v in found.items() if name not in NOT_PINNED and not name.startswith(("nvidia-", "cuda-"))
    }


def main() -> None:
    pins = resolved()
    (ROOT / "constraints.txt").write_text(HEAD + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins)))
    print(f"pinned {len(pins)} packages")


if __name__ == "__main__":
    main()

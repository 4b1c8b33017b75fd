"""Write constraints.txt: the exact version of every runtime dependency, direct or not, as pip resolves them today.

torch is not pinned, because the right build (CPU, CUDA version) depends on the machine.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_PINNED = {"paged-serve", "torch"}
HEAD = "# Written by scripts/pin.py: what was tested together. pip install -c constraints.txt .\n"


def resolved() -> dict[str, str]:
    """Versions by name, for this interpreter."""
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
    # torch itself pins the dependencies of its CUDA build.
    return {
        name: v for name, v in found.items() if name not in NOT_PINNED and not name.startswith(("nvidia-", "cuda-"))
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    pins = resolved()
    (ROOT / "constraints.txt").write_text(HEAD + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins)))
    print(f"pinned {len(pins)} packages")


if __name__ == "__main__":
    main()

"""One round of figures of our speed and of llama.cpp's, for the benchmarks that compare the two on the same weights.

Each system runs in processes of its own: a prompt of 512 tokens, and decode after a context of 128 tokens. Ours is the
time of 33 tokens minus that of one, llama.cpp's the decode rate of llama-batched-bench over 32 tokens.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_model import CONTEXT, DECODED, PREFILL

HERE = Path(__file__).parent
Round = dict[str, float]  # figure -> tokens per second


def ours(model: Path, batches: Sequence[int], threads: int) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rounds.json"
        command = [sys.executable, str(HERE / "bench_model.py"), str(model), f"threads={threads}", "--rounds", "1"]
        command += ["--no-load", "--batches", ",".join(map(str, batches)), "--json", str(found)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rounds: list[Round] = json.loads(found.read_text())["rounds"]
        return rounds[0]


def llama_cpp(file: Path, batches: Sequence[int], threads: int, programs: Path) -> Round:
    """`programs` has llama-bench, for the prompt, and llama-batched-bench, for decode."""
    common = ["-m", str(file), "-t", str(threads)]
    prompt = [*common, "-p", str(PREFILL), "-n", "0", "-r", "1", "-o", "jsonl"]
    found = {f"prefill {PREFILL}": float(last_line([str(programs / "llama-bench"), *prompt])["avg_ts"])}
    for batch in batches:
        sizes = {
            "-npp": CONTEXT,
            "-ntg": DECODED,
            "-npl": batch,
            "-c": batch * (CONTEXT + DECODED + 32),
            "-tb": threads,
        }
        options = [str(each) for pair in sizes.items() for each in pair]
        command = [str(programs / "llama-batched-bench"), *common, *options, "--output-format", "jsonl"]
        found[f"decode {batch}"] = float(last_line(command)["speed_tg"])
    return found


def last_line(command: Sequence[str], environment: dict[str, str] | None = None) -> dict[str, float]:
    """The last line of JSON that the command prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return found

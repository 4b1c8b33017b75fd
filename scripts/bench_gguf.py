"""Compare our speed with llama.cpp's on the same GGUF files: a prompt of 512 tokens, decode at batch 1 and 16.

    python scripts/bench_gguf.py FILE... --llama-bin DIR [--rounds 3] [--batches 1,16] [--threads 2] [--json FILE]

DIR has `llama-bench` and `llama-batched-bench`, built natively (cmake -DGGML_NATIVE=ON) from the sources in the sdist
of llama-cpp-python. The two systems alternate, round by round, in processes of their own; figures are medians over the
rounds in tokens per second. Decode follows a context of 128 tokens: ours is the time of 33 tokens minus that of one,
theirs is the decode rate of llama-batched-bench over 32 tokens.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_model import CONTEXT, DECODED, PREFILL

Round = dict[str, float]  # figure -> tokens per second


def ours(file: Path, batches: Sequence[int], threads: int) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rounds.json"
        sizes = ",".join(map(str, batches))
        command = [sys.executable, str(Path(__file__).with_name("bench_model.py")), str(file), f"threads={threads}"]
        command += ["--rounds", "1", "--no-load", "--batches", sizes, "--json", str(found)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rounds: list[Round] = json.loads(found.read_text())["rounds"]
        return rounds[0]


def theirs(file: Path, batches: Sequence[int], threads: int, programs: Path) -> Round:
    """llama-bench for the prompt, llama-batched-bench for decode; both print lines of JSON."""
    prompt = ["-m", str(file), "-t", str(threads), "-p", str(PREFILL), "-n", "0", "-r", "1", "-o", "jsonl"]
    found = {f"prefill {PREFILL}": float(_lines([str(programs / "llama-bench"), *prompt])[-1]["avg_ts"])}
    for batch in batches:
        sizes = [
            "-npp",
            str(CONTEXT),
            "-ntg",
            str(DECODED),
            "-npl",
            str(batch),
            "-c",
            str(batch * (CONTEXT + DECODED + 32)),
        ]
        common = ["-m", str(file), "-t", str(threads), "-tb", str(threads), "--output-format", "jsonl"]
        row = _lines([str(programs / "llama-batched-bench"), *common, *sizes])[-1]
        found[f"decode {batch}"] = float(row["speed_tg"])
    return found


def _lines(command: list[str]) -> list[dict[str, float]]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--llama-bin", type=Path, required=True)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    every: dict[str, list[tuple[Round, Round]]] = {}
    for file in options.files:
        rounds = every.setdefault(file.name, [])
        for _ in range(options.rounds):
            mine = ours(file, options.batches, options.threads)
            rounds.append((mine, theirs(file, options.batches, options.threads, options.llama_bin)))
        for name in rounds[0][1]:
            left, right = ([one[side][name] for one in rounds] for side in (0, 1))
            mine, peer = statistics.median(left), statistics.median(right)
            print(f"{file.name:32} {name:12} ours {mine:7.1f}  llama.cpp {peer:7.1f}  {mine / peer:5.2f}")
    if options.json:
        options.json.write_text(json.dumps(every))


if __name__ == "__main__":
    main()

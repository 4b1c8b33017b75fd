"""Compare our speed with llama.cpp's on the same GGUF files: a prompt of 512 tokens, decode at batch 1 and 16.

    python scripts/models/bench_gguf.py FILE... --llama-bin DIR [--rounds 3] [--batches 1,16] [--threads 2] [--json F]

DIR has `llama-bench` and `llama-batched-bench`, built natively (cmake -DGGML_NATIVE=ON) from the sources in the sdist
of llama-cpp-python. The two systems alternate, round by round, in processes of their own; figures are medians over the
rounds in tokens per second. Decode follows a context of 128 tokens: ours is the time of 33 tokens minus that of one,
theirs is the decode rate of llama-batched-bench over 32 tokens.
"""

import argparse
import json
import statistics
from pathlib import Path

from peer_rounds import Round, llama_cpp, ours


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
            own = ours(file, options.batches, options.threads)
            rounds.append((own, llama_cpp(file, options.batches, options.threads, options.llama_bin)))
        for name in rounds[0][1]:
            left, right = ([one[side][name] for one in rounds] for side in (0, 1))
            mine, peer = statistics.median(left), statistics.median(right)
            print(f"{file.name:32} {name:12} ours {mine:7.1f}  llama.cpp {peer:7.1f}  {mine / peer:5.2f}")
    if options.json:
        options.json.write_text(json.dumps(every))


if __name__ == "__main__":
    main()

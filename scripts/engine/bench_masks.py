"""Measure the time of a token mask in outputs that follow published JSON schemas.

    python scripts/engine/bench_masks.py FOLDER MODEL [--every 10] [--limit 100000]

FOLDER is a checkout of guidance-ai/jsonschemabench, MODEL a folder with a tokenizer.json. Each valid instance is used
as an output: one mask is computed before each of its tokens, as long as its keys are in the order of the grammar. The
figures are wall times on one core of a mask, and of compiling a grammar for this vocabulary. Target: 0.6 ms at p99 with
128k tokens.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import llguidance
import llguidance.numpy

from paged_serve.frontend.bench.report.report import environment
from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer, check, lowered
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams
from paged_serve.workers.batch.grammar_tokenizer import tokenizer_for_grammars


def sources(files: list[Path]) -> Iterator[tuple[str, list[str]]]:
    """Each supported grammar, and texts that it accepts."""
    checker = bytes_tokenizer(AddedTokens())
    for file in files:
        entry = json.loads(file.read_text())
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in entry["tests"] if test["valid"]]
        try:
            source = lowered(StructuredOutputsParams(json=json.dumps(entry["schema"]))).source
            check(source, checker)
        except InvalidRequest:
            continue
        yield source, texts


def report(name: str, seconds: list[float]) -> None:
    seconds.sort()
    at = {share: seconds[min(len(seconds) - 1, int(share * len(seconds)))] for share in (0.5, 0.99, 0.999)}
    mean = sum(seconds) / len(seconds)
    print(
        f"{name}: {len(seconds)}; us: mean {1e6 * mean:.0f}, median {1e6 * at[0.5]:.0f}, p99 {1e6 * at[0.99]:.0f}, "
        f"p99.9 {1e6 * at[0.999]:.0f}, max {1e6 * seconds[-1]:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--every", type=int, default=10, help="use every N-th schema (default: 10)")
    parser.add_argument("--limit", type=int, default=100_000, help="stop after this many masks (default: 100000)")
    arguments = parser.parse_args()
    tokenizer = Tokenizer(str(arguments.model))
    vocabulary = tokenizer.vocab_size
    matching = tokenizer_for_grammars(arguments.model / "tokenizer.json", vocabulary)
    bits = llguidance.numpy.allocate_token_bitmask(1, vocabulary)
    masks, compiled = list[float](), list[float]()
    for source, texts in sources(sorted((arguments.folder / "maskbench/data").glob("*.json"))[:: arguments.every]):
        started = time.perf_counter()
        first = llguidance.LLMatcher(matching, source, log_level=0)
        compiled.append(time.perf_counter() - started)
        for text in texts:
            matcher = first.deep_copy()
            for token in tokenizer.encode(text, add_special_tokens=False):
                started = time.perf_counter()
                llguidance.numpy.fill_next_token_bitmask(matcher, bits)
                masks.append(time.perf_counter() - started)
                if not matcher.consume_token(token):
                    break
        if len(masks) > arguments.limit:
            break
    print(f"{vocabulary} tokens; {environment()}")
    report("masks", masks)
    report("grammars compiled", compiled)


if __name__ == "__main__":
    main()

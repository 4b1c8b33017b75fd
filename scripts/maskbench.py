"""How many published JSON schemas are served, and does a grammar ever let an invalid instance through?

    python scripts/maskbench.py FOLDER [--every 1]

FOLDER is a checkout of guidance-ai/jsonschemabench, whose maskbench/data has 11,306 schemas with valid and invalid
instances. Each schema is rewritten and compiled as a server does it; each instance is fed byte by byte, its keys in any
order that the grammar takes. Exit code 1 when an instance comes through that a validator of JSON Schema refuses.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
from llguidance import LLMatcher

from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer, check, lowered
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

MAX_ORDERS = 400  # of an object's keys that are tried
TOKENIZER = bytes_tokenizer(AddedTokens())


@dataclass
class Count:
    served: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by reason
    rejects_valid: list[str] = field(default_factory=list)  # names of schemas
    accepts_invalid: list[str] = field(default_factory=list)
    compile_s: list[float] = field(default_factory=list)


def fed(matcher: LLMatcher, text: str) -> bool:
    data = list(text.encode(errors="surrogatepass"))
    return matcher.try_consume_tokens(data) == len(data)


def behind(matcher: LLMatcher, value: Any) -> LLMatcher | None:
    """A matcher that has read `value`, or None when the grammar does not take it."""
    found = matcher.deep_copy()
    if isinstance(value, dict):
        return _behind_object(found, list(value.items()), True, [MAX_ORDERS]) if fed(found, "{") else None
    if isinstance(value, list):
        for number, item in enumerate(value):
            if not fed(found, ", " if number else "["):
                return None
            if (read := behind(found, item)) is None:
                return None
            found = read
        return found if fed(found, "]" if value else "[]") else None
    return found if fed(found, json.dumps(value, ensure_ascii=False)) else None


def _behind_object(matcher: LLMatcher, left: list[tuple[str, Any]], first: bool, budget: list[int]) -> LLMatcher | None:
    if not left:
        end = matcher.deep_copy()
        return end if fed(end, "}") else None
    budget[0] -= 1
    for number, (key, value) in enumerate(left if budget[0] >= 0 else ()):
        keyed = matcher.deep_copy()
        if fed(keyed, ("" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": "):
            read = behind(keyed, value)
            rest = left[:number] + left[number + 1 :]
            if read is not None and (end := _behind_object(read, rest, False, budget)) is not None:
                return end
    return None


def count_schema(name: str, entry: dict[str, Any], count: Count) -> None:
    started = time.perf_counter()
    try:
        source = lowered(StructuredOutputsParams(json=json.dumps(entry["schema"]))).source
        check(source, TOKENIZER)
    except InvalidRequest as refused:
        count.refused[str(refused).rpartition(": ")[2][:80]] += 1
        return
    finally:
        count.compile_s.append(time.perf_counter() - started)
    count.served += 1
    matcher = LLMatcher(TOKENIZER, source, log_level=0)
    for test in entry["tests"]:
        end = behind(matcher, test["data"])
        accepts = end is not None and end.is_accepting()
        if test["valid"] and not accepts:
            count.rejects_valid.append(name)
        if accepts and not test["valid"] and not _is_valid(entry["schema"], test["data"]):
            count.accepts_invalid.append(name)


def _is_valid(schema: Any, instance: Any) -> bool:
    """By the specification, for which formats are annotations."""
    try:
        return bool(jsonschema_rs.validator_for(schema, validate_formats=False).is_valid(instance))
    except jsonschema_rs.ValidationError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="every how many-th schema (default: all)")
    arguments = parser.parse_args()
    files = sorted((arguments.folder / "maskbench/data").glob("*.json"))[:: arguments.every]
    if not files:
        parser.error(f"{arguments.folder} has no maskbench/data/*.json; clone guidance-ai/jsonschemabench")
    count = Count()
    for file in files:
        count_schema(file.stem, json.loads(file.read_text()), count)
    times = sorted(1000 * seconds for seconds in count.compile_s)
    print(f"{len(files)} schemas, {count.served} served ({100 * count.served / len(files):.2f} %)")
    print(
        f"compiled in {statistics.median(times):.1f} ms, p99 {times[len(times) * 99 // 100]:.1f}, max {times[-1]:.0f}"
    )
    for name in ("rejects_valid", "accepts_invalid"):
        found = sorted(set(getattr(count, name)))
        print(f"{name}: {len(found)} ({100 * len(found) / max(1, count.served):.2f} %) {' '.join(found[:20])}")
    for reason, number in count.refused.most_common(20):
        print(f"{number:6} {reason}")
    sys.exit(1 if count.accepts_invalid else 0)


if __name__ == "__main__":
    main()

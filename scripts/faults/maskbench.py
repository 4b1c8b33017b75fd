"""Count the published JSON schemas that are supported, and check that no grammar accepts an invalid instance.

    python scripts/faults/maskbench.py FOLDER [--every 1]

FOLDER is a checkout of guidance-ai/jsonschemabench, whose maskbench/data has 11,306 schemas with valid and invalid
instances. Each schema is rewritten and compiled as in a server. Each instance is passed byte by byte, with its keys in
any order that the grammar accepts; if MAX_TRIES texts find no such order, the instance is undecided. The exit status is
1 if a grammar accepts an instance that a JSON Schema validator rejects.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
from llguidance import LLMatcher

from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer, check, lowered
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

MAX_TRIES = 10_000  # texts tried per instance
TOKENIZER = bytes_tokenizer(AddedTokens())


@dataclass
class Found:
    """The results of one schema."""

    name: str
    compile_s: float = 0.0
    refusal: str = ""
    verdicts: set[str] = field(default_factory=set)


class Reading:
    """Passes one instance through a grammar, with its keys in any order that the grammar accepts."""

    def __init__(self, grammar: str, *, sorts: bool = False, by_byte: bool = False) -> None:
        """`sorts`: try the grammar's order of names first; `by_byte`: a mask before each byte, which renews limits."""
        self._grammar, self._sorts, self._by_byte = grammar, sorts, by_byte
        self.tries = MAX_TRIES
        self.failed = False  # because of a limit of llguidance

    def accepts(self, instance: Any) -> bool:
        end = self._behind(LLMatcher(TOKENIZER, self._grammar, log_level=0), instance)
        return end is not None and bool(end.is_accepting())

    def _behind(self, matcher: LLMatcher, value: Any) -> LLMatcher | None:
        """A matcher that has read `value`, or None if the grammar does not accept it."""
        found = matcher.deep_copy()
        if isinstance(value, dict):
            items = list(value.items())
            if self._sorts:
                items.sort(key=lambda item: self._grammar.find(json.dumps(item[0]) + ":") % sys.maxsize)
            return self._behind_object(found, items, True) if self._fed(found, "{") else None
        if isinstance(value, list):
            for number, item in enumerate(value):
                if not self._fed(found, ", " if number else "["):
                    return None
                if (read := self._behind(found, item)) is None:
                    return None
                found = read
            return found if self._fed(found, "]" if value else "[]") else None
        if self._fed(found, text := json.dumps(value, ensure_ascii=False)):
            return found
        plain = matcher.deep_copy()  # with numbers in decimal notation: 0.000001 for 1e-06
        is_short = isinstance(value, float) and "e" in text
        return plain if is_short and self._fed(plain, f"{value:.20f}".rstrip("0")) else None

    def _behind_object(self, matcher: LLMatcher, left: list[tuple[str, Any]], first: bool) -> LLMatcher | None:
        if not left:
            end = matcher.deep_copy()
            return end if self._fed(end, "}") else None
        for number, (key, value) in enumerate(left):
            keyed = matcher.deep_copy()
            if self._fed(keyed, ("" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": "):
                read = self._behind(keyed, value)
                rest = left[:number] + left[number + 1 :]
                if read is not None and (end := self._behind_object(read, rest, False)) is not None:
                    return end
        return None

    def _fed(self, matcher: LLMatcher, text: str) -> bool:
        self.tries -= 1
        if self.tries < 0:
            return False
        data = list(text.encode(errors="surrogatepass"))
        for part in ([byte] for byte in data) if self._by_byte else (data,):
            if self._by_byte:
                matcher.compute_bitmask()
            if matcher.try_consume_tokens(part) < len(part):
                matcher.compute_bitmask()  # reports whether a limit was the reason
                self.failed |= "lexer error" in matcher.get_error()
                return False
        return True


def found_in(file: Path) -> Found:
    entry, found = json.loads(file.read_text()), Found(file.stem)
    started = time.perf_counter()
    try:
        source = lowered(StructuredOutputsParams(json=json.dumps(entry["schema"]))).source
        check(source, TOKENIZER)
    except InvalidRequest as refused:
        found.refusal = str(refused).rpartition(": ")[2][:80]
        return found
    found.compile_s = time.perf_counter() - started
    for test in entry["tests"]:
        rejection_reason = not_accepted(source, test["data"])
        if not rejection_reason and not test["valid"] and not _is_valid(entry["schema"], test["data"]):
            found.verdicts.add("accepts invalid")
        if rejection_reason and test["valid"]:
            found.verdicts.add(rejection_reason)
    return found


def not_accepted(source: str, instance: Any) -> str:
    """Why the instance is not accepted; empty if it is accepted."""
    reading = Reading(source)
    is_accepted = reading.accepts(instance)
    if not is_accepted and reading.tries < 0:
        reading = Reading(source, sorts=True)
        is_accepted = reading.accepts(instance)
    if not is_accepted and reading.failed:
        reading = Reading(source, by_byte=True)
        is_accepted = reading.accepts(instance)
    if is_accepted:
        return ""
    return "fails" if reading.failed else "undecided" if reading.tries < 0 else "rejects valid"


def _is_valid(schema: Any, instance: Any) -> bool:
    """Validity by the specification, in which formats are annotations."""
    try:
        return bool(jsonschema_rs.validator_for(schema, validate_formats=False).is_valid(instance))
    except jsonschema_rs.ValidationError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="use every N-th schema (default: all)")
    arguments = parser.parse_args()
    files = sorted((arguments.folder / "maskbench/data").glob("*.json"))[:: arguments.every]
    if not files:
        parser.error(f"{arguments.folder} has no maskbench/data/*.json; clone guidance-ai/jsonschemabench")
    with ProcessPoolExecutor() as executor:
        found = list(executor.map(found_in, files, chunksize=8))
    report(found)
    sys.exit(1 if any("accepts invalid" in one.verdicts for one in found) else 0)


def report(found: list[Found]) -> None:
    served = [one for one in found if not one.refusal]
    times = sorted(1000 * one.compile_s for one in served)
    print(f"{len(found)} schemas, {len(served)} served ({100 * len(served) / len(found):.2f} %)")
    print(
        f"compiled in {statistics.median(times):.1f} ms, p99 {times[len(times) * 99 // 100]:.1f}, max {times[-1]:.0f}"
    )
    for verdict in ("accepts invalid", "rejects valid", "fails", "undecided"):
        names = [one.name for one in served if verdict in one.verdicts]
        print(f"{verdict}: {len(names)} ({100 * len(names) / len(served):.2f} %) {' '.join(names)}")
    for reason, number in Counter(one.refusal for one in found if one.refusal).most_common(20):
        print(f"{number:6} {reason}")


if __name__ == "__main__":
    main()

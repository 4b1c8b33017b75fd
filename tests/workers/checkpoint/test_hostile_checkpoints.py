"""Damaged model folders are refused with a message or loaded; they cause no other error, no crash, no memory peak."""

import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.workers.models.registry import read_geometry

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

NIGHTLY_COUNT = int(os.environ.get("PAGED_SERVE_TEST_FUZZ_COUNT", 20_000))
MAX_GROWTH_BYTES = 256 << 20
ODD = [None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, -0.5, "", "a", "\ud7ff", [], {}, [[]], {"": None}, "x" * 5000]


def damage(value: Any, rng: random.Random) -> Any:
    """Damage a random place in `value`: replace or remove something, or nest it deeper."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        match rng.randrange(6):
            case 0:
                return {name: inner for name, inner in value.items() if name != key}
            case 1:
                return {**value, rng.choice(list(value)): value[key]}
            case _:
                return {**value, key: damage(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], damage(value[index], rng), *value[index + rng.choice((1, 1, 2)) :]]
    return rng.choice(ODD)


def damaged_file(path: Path, rng: random.Random) -> None:
    text = path.read_bytes()
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        path.write_bytes(text[:at] + rng.randbytes(rng.randint(0, 3)) + text[at + rng.randint(0, 3) :])
    else:
        path.write_text(json.dumps(damage(json.loads(text), rng)))


def use_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(str(folder))
    tokenizer.decode(tokenizer.encode("some text"))


PARSERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tokenizer": ("tokenizer.json", use_tokenizer),
    "tokenizer configuration": ("tokenizer_config.json", use_tokenizer),
    "configuration": ("config.json", read_geometry),
    "generation configuration": ("generation_config.json", read_geometry),
}


@pytest.mark.parametrize(
    "count", [60, pytest.param(NIGHTLY_COUNT, marks=[pytest.mark.nightly, pytest.mark.timeout(0)])]
)
@pytest.mark.parametrize("parser", PARSERS)
def test_a_damaged_file_is_refused_or_accepted(tmp_path, parser, count):
    name, parse = PARSERS[parser]
    whole = demo_model_folder()
    for file in whole.iterdir():
        (tmp_path / file.name).symlink_to(file.resolve())
    before, taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for number in range(count):
        rng = random.Random(f"{parser} {number}")
        (tmp_path / name).unlink(missing_ok=True)
        shutil.copyfile(whole / name, tmp_path / name)
        damaged_file(tmp_path / name, rng)
        try:
            parse(tmp_path)
            taken += 1
        except (ConfigError, InvalidRequest):
            continue
        except BaseException as error:
            error.add_note(f"{parser} number {number}")
            raise
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MAX_GROWTH_BYTES
    print(f"{parser}: {count} damaged files, {taken} accepted")

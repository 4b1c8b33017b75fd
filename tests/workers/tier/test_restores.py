"""Ten thousand restored blocks, each compared with the bytes that were computed, whatever happens to the tier.

python -m pytest -m nightly tests/workers/tier/test_restores.py -s
"""

import contextlib
import random
from collections import Counter, defaultdict

import pytest
import torch

from .accidents import damage, full_disk
from .conftest import random_prompt

CONFIGURATIONS = (
    ("full", None, 16),
    ("full", None, 32),
    ("full", torch.int8, 16),
    ("other weights", None, 16),
    ("windows", None, 16),
    ("states", None, 16),
)
PROMPTS = [random_prompt(300, seed) for seed in range(6)]
NUM_BLOCKS = 40  # two prompts: what was evicted comes back from the tier, too
MAX_BYTES = 1 << 20  # of the tier, less than all blocks of a configuration
FREE_BYTES = 1500  # less than a block


def files_of(folder):
    return sorted(path for path in folder.glob("*/*") if len(path.name) == 68)


def has_met_all(counts, used, num_restores):
    """What is stored when a server ends, and so what is damaged, may depend on time: so it is counted."""
    return (
        counts["restored"] >= num_restores
        and counts["refused"] > num_restores / 200
        and counts["on a full disk"]
        and used == set(CONFIGURATIONS)
    )


def restore(serve, folder, num_restores, rng):
    """Servers of changing configurations, one after the other, on one tier, until each has met each accident.

    Returns what has happened how often.
    """
    computed = defaultdict(set)  # configuration and key -> bytes that were computed
    answers, counts, used = {}, Counter(), set()
    for kind, _, _ in CONFIGURATIONS:
        serve(kind).close()  # writes the models while the disk is not full
    while not has_met_all(counts, used, num_restores):
        assert counts["servers"] < num_restores, f"{counts} after servers of {used}"
        configuration = kind, dtype, block_size = rng.choice(CONFIGURATIONS)
        used.add(configuration)
        is_full = counts["servers"] % 5 == 4
        with full_disk(FREE_BYTES) if is_full else contextlib.nullcontext():
            server = serve(kind, dtype, num_blocks=NUM_BLOCKS, block_size=block_size, max_bytes=MAX_BYTES)
            for number in range(1, 7):
                prompt = rng.randrange(len(PROMPTS))
                answer, _ = server.complete(PROMPTS[prompt], number)
                assert answers.setdefault((configuration, prompt), answer) == answer, "an answer has other bits"
            server.close()
        for key, contents in server.stored:
            computed[configuration, key].add(contents)
        for key, contents in server.restored:
            assert contents in computed[configuration, key], "a block was restored to other bytes"
        counts["restored"] += len(server.restored)
        counts["refused"] += server.num_refused
        counts["servers"] += 1
        counts["on a full disk"] += is_full
        paths = files_of(folder)
        for path in rng.sample(paths, len(paths) // 20):
            damage(path, paths, rng)
            counts["damaged"] += 1
    return counts


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("num_restores", [200, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_restored_blocks_have_the_bytes_that_were_computed(num_restores, serve, tmp_path):
    counts = restore(serve, tmp_path / "tier", num_restores, random.Random(num_restores))
    print(dict(counts))
    assert len(list((tmp_path / "tier").glob("*/"))) == len(CONFIGURATIONS), "configurations share a folder"

"""Files of a KV tier: whatever happens to them, a block is restored to its bytes or not at all."""

import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paged_serve.protocol.messages.config import Config, ModelConfig
from paged_serve.workers.kernels.cpu.library import best_library
from paged_serve.workers.tier.block_files import CHECKSUM_BYTES, FIELDS, HEADER_BYTES, TEMPORARY, BlockFiles
from paged_serve.workers.tier.block_memory import HostBlocks, Parts
from paged_serve.workers.tier.checksum import checksum
from paged_serve.workers.tier.identity import STAMPS, _remove_unused, folder_of
from paged_serve.workers.tier.tier import Mover
from paged_serve.workers.tier.tier_levels import TierLevels

from .accidents import damage, full_disk

KEY_BYTES = 34
BLOCKS, AREAS = 8, (640, 96, 96)
BLOCK_BYTES = sum(AREAS)
LIBRARIES = [pytest.param(None, id="blake2b")]
if best_library() is not None:
    LIBRARIES.append(pytest.param(best_library(), id="words"))


class Cache:
    """A small cache whose blocks' contents follow from their keys."""

    def __init__(self, library):
        self.areas = [torch.zeros((BLOCKS, nbytes), dtype=torch.uint8) for nbytes in AREAS]
        self.mover = Mover(HostBlocks(self.areas), checksum(library))

    def fill(self, block, key):
        made = contents(key)
        for area, part in zip(self.areas, made.split(AREAS), strict=True):
            area[block] = part

    def holds(self, block, key):
        return torch.equal(torch.cat([area[block] for area in self.areas]), contents(key))


def contents(key):
    return torch.frombuffer(bytearray(random.Random(key).randbytes(BLOCK_BYTES)), dtype=torch.uint8)


def open_files(folder, max_blocks=1 << 20):
    files = BlockFiles(folder, BLOCK_BYTES, max_blocks * (BLOCK_BYTES + HEADER_BYTES))
    files.open()
    return files


def opened(folder, max_blocks=1 << 20):
    levels = TierLevels([open_files(folder, max_blocks)])
    return levels, levels.keys()


def restore_many(folder, library, num_restores, rng):
    """Store, damage, restart and restore; returns how many blocks were restored, and how many refused."""
    cache, restored, refused = Cache(library), 0, 0
    files, _ = opened(folder, max_blocks=60)
    keys = [rng.randbytes(KEY_BYTES) for _ in range(40)]
    while restored + refused < num_restores:
        for key in keys:
            if rng.random() < 0.3:
                block = rng.randrange(BLOCKS)
                cache.fill(block, key)
                assert not files.make_room(1) or len(files) < 60
                assert cache.mover.store(files, block, key)
        paths = [path for path in folder.iterdir() if not path.name.startswith(TEMPORARY)]
        for path in paths:
            if rng.random() < 0.1:
                damage(path, paths, rng)
        if rng.random() < 0.3:
            files, known = opened(folder, max_blocks=60)
            assert {key.hex() for key in known} == {path.name for path in folder.iterdir()}
        for key in keys:
            block = rng.randrange(BLOCKS)
            for area in cache.areas:
                area[block] = 7
            if cache.mover.load(files, block, key):
                assert cache.holds(block, key), "a block was restored to other bytes"
                restored += 1
            else:
                assert not any(bool(area[block].any()) for area in cache.areas), "a damaged block is in the cache"
                refused += 1
    return restored, refused


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_damaged_block_is_never_restored(library, tmp_path):
    restored, refused = restore_many(tmp_path, library, 800, random.Random(1))
    assert min(restored, refused) > 50


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_restores_have_no_wrong_block(seed, tmp_path):
    restored, refused = restore_many(tmp_path, best_library(), 10_000, random.Random(seed))
    assert min(restored, refused) > 1000


def test_every_flipped_bit_is_detected(tmp_path):
    cache, (files, _) = Cache(best_library()), opened(tmp_path)
    key = bytes(range(KEY_BYTES))
    cache.fill(0, key)
    assert cache.mover.store(files, 0, key)
    whole = (tmp_path / key.hex()).read_bytes()
    sealed_end = FIELDS.size + CHECKSUM_BYTES  # zeros follow up to the block
    for byte in [*range(sealed_end), *range(HEADER_BYTES, len(whole), 3)]:
        raw = bytearray(whole)
        raw[byte] ^= 1 << byte % 8
        (tmp_path / key.hex()).write_bytes(raw)
        assert not cache.mover.load(files, 0, key), f"a flipped bit in byte {byte} was not detected"


def test_a_block_of_another_model_under_the_same_name_is_refused(tmp_path):
    cache, key = Cache(best_library()), bytes(range(KEY_BYTES))
    (files, _), (others, _) = opened(tmp_path / "one"), opened(tmp_path / "other")
    cache.fill(0, key)
    assert cache.mover.store(files, 0, key)
    (tmp_path / "one" / key.hex()).rename(tmp_path / "other" / key.hex())
    assert not cache.mover.load(others, 0, key)


def test_the_budget_evicts_what_was_used_least_recently(tmp_path):
    cache, (files, _) = Cache(None), opened(tmp_path, max_blocks=3)
    keys = [bytes([number]) * KEY_BYTES for number in range(4)]
    for at, key in enumerate(keys[:3]):
        cache.fill(0, key)
        assert files.make_room(1) == []
        assert cache.mover.store(files, 0, key)
        os.utime(tmp_path / key.hex(), (at, at))
    assert cache.mover.load(files, 0, keys[0])
    assert files.make_room(1) == [keys[1]]
    _, known = opened(tmp_path, max_blocks=3)
    assert known == [keys[2], keys[0]], "the order of use is lost with the server"


def test_a_folder_that_cannot_be_written_stops_storing_and_keeps_loading(tmp_path, caplog):
    cache, (files, _) = Cache(None), opened(tmp_path)
    key, other = b"k" * KEY_BYTES, b"o" * KEY_BYTES
    cache.fill(0, key)
    assert cache.mover.store(files, 0, key)
    with full_disk(100):
        assert not cache.mover.store(files, 0, other)
    assert not cache.mover.store(files, 0, other), "it stores again"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert cache.mover.load(files, 1, key)
    assert cache.holds(1, key)
    assert [path.name for path in tmp_path.iterdir()] == [key.hex()], "a temporary file was left"


def test_a_folder_that_is_deleted_while_a_server_runs_is_made_again(tmp_path, caplog):
    folder = tmp_path / "tier" / "rank"
    cache, (files, _) = Cache(None), opened(folder)
    key, other = b"k" * KEY_BYTES, b"o" * KEY_BYTES
    cache.fill(0, key)
    assert cache.mover.store(files, 0, key)
    shutil.rmtree(folder.parent)
    assert not cache.mover.load(files, 1, key)
    cache.fill(0, other)
    assert cache.mover.store(files, 0, other)
    assert cache.mover.load(files, 1, other)
    assert cache.holds(1, other)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not caplog.records


KILLED = """
import os, sys, torch
from pathlib import Path
from paged_serve.workers.tier.block_files import BlockFiles
from paged_serve.workers.tier.block_memory import Parts
from paged_serve.workers.tier.checksum import checksum
files = BlockFiles(Path(sys.argv[1]), 4096, 1 << 30)
files.open()
block = torch.full((4096,), 5, dtype=torch.uint8)
print("ready", flush=True)
for number in range(1 << 30):
    files.write(number.to_bytes(34, "little"), Parts.of(block), checksum(None))
"""


def test_a_process_that_is_killed_while_it_stores_leaves_only_whole_blocks(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    while sum(1 for _ in tmp_path.iterdir()) < 50:
        assert child.poll() is None
    child.kill()
    child.wait()
    child.stdout.close()
    files = BlockFiles(tmp_path, 4096, 1 << 30)
    files.open()
    known, block = files.keys(), torch.zeros(4096, dtype=torch.uint8)
    for key in known:
        assert files.read(key, Parts.of(block), checksum(None))
        assert bool((block == 5).all())


def test_a_folder_is_opened_while_another_server_stores_and_evicts(tmp_path):
    cache, (files, _) = Cache(None), opened(tmp_path, max_blocks=200)
    evicts, ends = threading.Event(), threading.Event()

    def store():
        for number in itertools.takewhile(lambda _: not ends.is_set(), itertools.count()):
            if files.make_room(1):
                evicts.set()
            assert cache.mover.store(files, 0, number.to_bytes(KEY_BYTES, "big"))

    with ThreadPoolExecutor(1) as other:
        storing = other.submit(store)
        try:
            assert evicts.wait(60)
            for _ in range(100):
                open_files(tmp_path)
        finally:
            ends.set()
        storing.result()


def test_ranks_that_start_together_remove_the_folders_of_former_models(tmp_path):
    old = [tmp_path / f"{number:032x}" for number in range(30)]
    with ThreadPoolExecutor(2) as ranks:
        for _ in range(6):
            for folder in old:
                folder.mkdir()
                os.utime(folder, (0, 0))
            assert [*ranks.map(_remove_unused, [tmp_path] * 2, [tmp_path / "own"] * 2)] == [None] * 2
            assert not [*tmp_path.iterdir()]


def test_stamps_that_a_power_failure_has_zeroed_are_made_again(tmp_path):
    """Else the weights of two models with one configuration would be the same."""
    models, root = [tmp_path / name for name in ("one", "other")], tmp_path / "tier"

    def folders():
        return [folder_of(root, Config(), each, [each / "weights"], (), checksum(None)) for each in models]

    for model in models:
        model.mkdir()
        (model / "weights").write_text(model.name)
    before = folders()
    for stamp in root.glob(f"{STAMPS}*"):
        stamp.write_bytes(bytes(stamp.stat().st_size))
    assert folders() == before
    assert before[0] != before[1]


def test_a_folder_is_of_the_models_own_code_where_it_runs(tmp_path):
    configs, found = [Config(model=ModelConfig(trust_remote_code=runs)) for runs in (True, False)], []
    for text in ("x", "2 * x"):
        (tmp_path / "modeling_own.py").write_text(text)
        found.append([folder_of(tmp_path / "tier", each, tmp_path, [], (), checksum(None)) for each in configs])
    (running, unused), (running_changed, unused_changed) = found
    assert running != running_changed
    assert unused == unused_changed


def test_levels_evict_by_their_own_budgets_and_report_what_none_has(tmp_path):
    cache, memory, disk = Cache(None), open_files(tmp_path / "memory", 2), open_files(tmp_path / "disk", 4)
    levels, keys = TierLevels([memory, disk]), [bytes([number]) * KEY_BYTES for number in range(6)]
    gone = []
    for key in keys:
        cache.fill(0, key)
        gone.append(levels.make_room(1))
        assert cache.mover.store(levels, 0, key)
    assert gone == [[], [], [], [], [keys[0]], [keys[1]]]
    assert (memory.keys(), disk.keys(), levels.keys()) == (keys[4:], keys[2:], keys[2:])
    for key in keys[2:]:
        assert cache.mover.load(levels, 1, key)
        assert cache.holds(1, key)
    assert not cache.mover.load(levels, 1, keys[0])
    assert levels.remove([keys[0], keys[3], keys[5]]) == [keys[5], keys[3]]


def test_a_full_level_does_not_stop_the_other(tmp_path):
    cache, memory, disk = Cache(None), open_files(tmp_path / "memory"), open_files(tmp_path / "disk")
    levels, keys = TierLevels([memory, disk]), [bytes([number]) * KEY_BYTES for number in range(2)]
    memory.is_full = True
    assert cache.mover.store(levels, 0, keys[0])
    assert not levels.is_full
    assert (memory.keys(), disk.keys()) == ([], keys[:1])
    disk.is_full = True
    assert levels.is_full
    assert not cache.mover.store(levels, 0, keys[1])

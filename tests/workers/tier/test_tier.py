"""A rank's tier behind the real engine core and the real runner: restored blocks have the bits of computed ones."""

from pathlib import Path

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.transport import run_dir
from paged_serve.workers.tier import open_tier

from .conftest import random_prompt


@pytest.mark.parametrize("kind", ["full", "windows", "states"])
def test_a_later_server_restores_a_prompt_to_the_same_bits(kind, serve):
    first, prompt = serve(kind), random_prompt(150, 1)
    size = first.block_size
    expected, computed = first.complete(prompt)
    assert computed == len(prompt)
    assert first.complete(prompt, 2)[0] == expected, "from the prefix cache"
    later = serve(kind)
    restored, computed = later.complete(prompt)
    assert computed == (len(prompt) - 1) % size + 1, "not all full blocks were restored"
    assert restored == expected
    longer = [*prompt, *expected[0], *random_prompt(30, 2)]
    assert later.complete(longer, 3)[0] == serve(kind).complete(longer)[0] == first.complete(longer, 4)[0]


def test_blocks_in_int8_come_back_with_their_scales(serve):
    prompt = random_prompt(150, 1)
    first = serve("full", dtype=torch.int8)
    if first.model.attention.coded_cache != torch.int8:
        pytest.skip("needs the kernels")
    expected, _ = first.complete(prompt)
    restored, computed = serve("full", dtype=torch.int8).complete(prompt)
    assert (restored, computed) == (expected, 6)
    assert serve("full").complete(prompt)[1] == len(prompt), "a cache of another dtype found these blocks"


def test_damaged_blocks_and_other_weights_are_computed(serve, tmp_path):
    prompt = random_prompt(150, 1)
    expected, _ = serve("full").complete(prompt)
    paths = sorted(path for path in tmp_path.glob("tier/*/*") if len(path.name) == 68)
    assert len(paths) >= 9
    for path in paths[3:]:
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 0x80
        path.write_bytes(raw)
    restored, computed = serve("full").complete(prompt)
    assert restored == expected
    assert computed > 6
    assert serve("full", block_size=32).complete(prompt)[1] == len(prompt), "blocks of another size were used"
    weights = tmp_path / "full/model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    assert serve("full").complete(prompt)[1] == len(prompt), "blocks of other weights were used"


def test_evicted_blocks_come_back_while_the_server_runs(serve):
    process = serve("full", num_blocks=26)
    prompts = [random_prompt(300, seed) for seed in range(3)]
    expected = [process.complete(prompt, number)[0] for number, prompt in enumerate(prompts)]
    for number, prompt in enumerate(prompts):
        restored, computed = process.complete(prompt, 10 + number)
        assert restored == expected[number]
        assert computed == (len(prompt) - 1) % 16 + 1
    assert Path(process.config.kv_tier.dir).is_dir()


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A run directory whose files in memory are in a folder of the test."""
    monkeypatch.setattr(run_dir, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(open_tier, "SHARED_MEMORY", tmp_path)
    return "run-test"


@pytest.mark.parametrize("disk", [False, True])
def test_blocks_come_back_from_memory_while_the_server_lives(disk, serve, host, tmp_path):
    prompt = random_prompt(150, 1)
    expected, _ = serve("full", host=host, disk=disk).complete(prompt)
    assert len(list(tmp_path.glob("paged-serve-*/run-test/*/*"))) >= 9
    for path in tmp_path.glob("tier/*/*"):
        path.unlink()  # memory is asked first
    new_worker = serve("full", host=host, disk=disk)
    assert new_worker.complete(prompt) == (expected, 6)
    assert new_worker.num_refused == 0
    later = serve("full", host="run-later", disk=False)
    assert later.complete(prompt) == (expected, len(prompt)), "another server's memory was used"


def test_a_block_that_is_damaged_in_memory_comes_from_the_disk(serve, host, tmp_path):
    prompt = random_prompt(150, 1)
    expected, _ = serve("full", host=host).complete(prompt)
    for path in tmp_path.glob("paged-serve-*/run-test/*/*"):
        path.write_bytes(path.read_bytes()[:-1])
    process = serve("full", host=host)
    assert process.complete(prompt) == (expected, 6)
    assert process.num_refused == 0


def test_memory_is_used_where_the_folder_on_disk_cannot_be(serve, host, tmp_path):
    (tmp_path / "tier").touch()
    prompt = random_prompt(150, 1)
    expected, _ = serve("full", host=host).complete(prompt)
    assert serve("full", host=host).complete(prompt) == (expected, 6)


def test_a_tier_without_room_for_a_block_says_so_and_keeps_what_others_have_stored(serve, caplog, tmp_path):
    prompt = random_prompt(60, 9)
    expected, _ = serve("full").complete(prompt)
    stored = {path for path in tmp_path.glob("tier/*/*") if len(path.name) == 68}
    assert stored
    assert serve("full", max_bytes=100).complete(prompt) == (expected, len(prompt))
    assert "has no room for a block of " in caplog.text
    assert stored == {path for path in tmp_path.glob("tier/*/*") if len(path.name) == 68}


def test_a_host_without_shared_memory_is_refused_by_its_field(serve, monkeypatch, tmp_path):
    monkeypatch.setattr(open_tier, "SHARED_MEMORY", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"kv_tier_host_bytes=\d+ needs .*/none: No such file or directory"):
        serve("full", host="run-test")


def test_more_memory_than_there_is_is_refused_with_the_numbers(serve):
    with pytest.raises(ConfigError, match=r"kv_tier_host_bytes=\d+ of 1 ranks do not fit in /dev/shm of \d+ bytes"):
        serve("full", host="run-test", max_bytes=1 << 60)

"""A rank's tier behind the real engine core and the real runner: restored blocks have the bits of computed ones."""

from pathlib import Path

import pytest
import torch

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

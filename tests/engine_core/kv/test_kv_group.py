"""KV groups with windows or attention chunks: block math compared with a count, prefixes with a full search."""

import random
from types import SimpleNamespace

import pytest

from paged_serve.engine_core.admission.validation import fitting_model_len
from paged_serve.engine_core.kv.block_pool import BlockPool
from paged_serve.engine_core.kv.kv_group import RELEASED, AttentionChunkGroup, KVGroups, WindowGroup, keys_of
from paged_serve.engine_core.kv.prefix_cache import PrefixCache
from paged_serve.engine_core.simulation.scenarios.scenario import blocks_of_alone
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.loading.startup import KVGroup

MISTRAL = (KVGroup(4096),)
GEMMA_3 = (KVGroup(1024),) * 5 + (KVGroup(),)


def config_of(max_chunk: int, max_model_len: int | None = None) -> Config:
    return Config(
        model=ModelConfig(model="m", max_model_len=max_model_len),
        scheduler=SchedulerConfig(max_num_batched_tokens=max_chunk),
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_window_group_has_blocks_for_what_a_chunk_attends_to_and_no_more(seed):
    rng = random.Random(seed)
    size, window, chunk = rng.choice((1, 2, 4, 16)), rng.randint(1, 40), rng.randint(1, 40)
    group = WindowGroup(window, size, chunk)
    num_owned = []
    for position in range(200):
        seen = {p // size for p in range(max(0, position - window + 1), position + chunk)}
        assert group.first_needed(position) == min(seen)
        assert group.end(position, 10_000) > max(seen)
        num_owned.append(group.end(position, 10_000) - group.first_needed(position))
        assert group.end(position, max(seen)) == max(seen), "a row has blocks for more tokens than it has"
        at_most = max(len({p // size for p in range(at, at + window - 1 + chunk)}) for at in range(size))
        assert num_owned[-1] == at_most


@pytest.mark.parametrize("seed", range(20))
def test_an_attention_chunk_has_blocks_for_what_a_chunk_sees_and_no_more(seed):
    rng = random.Random(seed)
    size, attention_chunk, chunk = rng.choice((1, 2, 4, 16)), rng.randint(1, 40), rng.randint(1, 40)
    group = AttentionChunkGroup(attention_chunk, size, chunk)
    num_held = []
    for position in range(1000):
        seen = {p // size for p in range(position - position % attention_chunk, position + chunk)}
        assert group.first_needed(position) == min(seen)
        assert group.end(position, 10_000) > max(seen)
        assert group.end(position, max(seen)) == max(seen), "a row has blocks for more tokens than it has"
        num_held.append(len(seen))
    assert group.end(0, 10_000) == max(num_held)


def test_a_llama_4_holds_attention_chunks_and_its_full_layers():
    groups = KVGroups.of((KVGroup(attention_chunk=8192),) * 3 + (KVGroup(),), 16, 2048)
    assert groups.full == (3,)
    assert groups.windows == (0, 1, 2)
    assert [indices for _, indices in groups.by_kind] == [(0, 1, 2)]
    assert groups.num_blocks_for(131_072) == 131_072 // 16 + 3 * (8192 + 2048) // 16
    assert groups.first_needed(8191) == [0, 0, 0, 0]
    assert groups.first_needed(8192) == [512, 512, 512, 0]


def random_groups(rng: random.Random, sizes: tuple[int, ...]) -> tuple[KVGroup, ...]:
    """Full groups (of size 0), windows, attention chunks and states."""
    kinds = [(rng.choice(sizes), rng.random() < 0.4) for _ in range(rng.randint(1, 4))]
    groups = [KVGroup(attention_chunk=size) if is_chunk else KVGroup(size) for size, is_chunk in kinds]
    return tuple(KVGroup(is_state=True) if rng.random() < 0.2 else group for group in groups)


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_sequence_that_fits_alone_equals_a_count(seed):
    rng = random.Random(seed)
    size, chunk = rng.choice((1, 2, 4, 8)), rng.randint(1, 20)
    kv_groups = random_groups(rng, (0, 0, 1, 3, 10))
    groups = KVGroups.of(kv_groups, size, chunk)
    for num_blocks in range(40):
        capacity = groups.capacity_tokens(num_blocks)
        assert capacity % size == 0
        assert blocks_of_alone(capacity, kv_groups, size, chunk) <= num_blocks
        longer = blocks_of_alone(capacity + 1, kv_groups, size, chunk)
        assert longer > num_blocks or capacity > 10**9, "a longer one fits"
        assert groups.num_blocks_for(capacity) == blocks_of_alone(min(capacity, 10**4), kv_groups, size, chunk)


def test_a_mistral_holds_its_window_and_a_gemma_little_more_than_its_full_layers():
    config = config_of(max_chunk=2048)
    mistral, gemma = (KVGroups.of(groups, 16, 2048) for groups in (MISTRAL, GEMMA_3))
    assert mistral.num_blocks_for(1_000_000) == (4096 + 2048) // 16 + 1
    assert gemma.num_blocks_for(131_072) == 131_072 // 16 + 5 * ((1024 + 2048) // 16 + 1)
    assert gemma.num_blocks_for(131_072) / (6 * 131_072 / 16) < 0.19, "of what six full groups would hold"
    assert fitting_model_len(config, 400, 16, 1_000_000, MISTRAL) == 1_000_000
    assert fitting_model_len(config, 1000, 16, 131_072, GEMMA_3) == 1000 // 6 * 16, "it ends within window and chunk"
    assert fitting_model_len(config, 8192 + 965, 16, 200_000, GEMMA_3) == 131_072


def test_a_context_that_does_not_fit_is_refused_with_the_blocks_of_all_groups():
    config = config_of(max_chunk=2048, max_model_len=131_072)
    with pytest.raises(ConfigError, match=r"needs 9157 KV blocks of 16 tokens; there are 9156.*to 131056.*batched"):
        fitting_model_len(config, 9156, 16, 131_072, GEMMA_3)
    assert fitting_model_len(config, 9157, 16, 131_072, GEMMA_3) == 131_072


def test_a_cache_that_shortens_the_context_is_reported_with_the_blocks_of_the_whole_one(caplog):
    config = config_of(max_chunk=2048)
    assert fitting_model_len(config, 128, 16, 2048) == 2048
    assert not caplog.messages
    assert fitting_model_len(config, 3, 16, 2048) == 48
    assert caplog.messages == [
        "3 KV blocks of 16 tokens limit the context to 48 tokens, prompt and output; the model's 2048 need 128: "
        "raise --kv-cache-memory-bytes or --num-blocks"
    ]


def test_a_cache_that_holds_no_sequence_is_refused():
    config = config_of(max_chunk=2048)
    with pytest.raises(ConfigError, match=r"no sequence, which needs at least 6; the longest needs 9157\. Raise"):
        fitting_model_len(config, 5, 16, 131_072, GEMMA_3)


def first_seen(group: KVGroup, position: int) -> int:
    """The first position that the token at `position` attends to, or whose state it starts from, found by counting."""
    if group.is_state:
        return max(0, position - 1)
    if group.attention_chunk:
        return max(start for start in range(0, position + 1, group.attention_chunk))
    return max(0, position - group.window + 1) if group.window else 0


@pytest.mark.parametrize("seed", range(150))
def test_the_prefix_found_is_the_longest_that_every_group_has(seed):
    """Each group has a random subset of the blocks; every length is tried."""
    rng = random.Random(seed)
    size, num_hashes = rng.choice((1, 2, 4)), rng.randint(1, 24)
    kv_groups = random_groups(rng, (0, 1, 2, 3, 7, 16))
    groups = KVGroups.of(kv_groups, size, 8)
    pool = BlockPool(num_hashes * len(kv_groups))
    cache = PrefixCache(pool, groups, enabled=True)
    hashes = [bytes([index]) * 32 for index in range(num_hashes)]
    known = {}
    for group in range(len(kv_groups)):
        for index in range(num_hashes):
            if rng.random() < rng.choice((0.5, 0.95, 1.0)):
                [known[group, index]] = blocks = pool.allocate(1)
                pool.publish(blocks, keys_of(group, hashes[index : index + 1]))
    request = SimpleNamespace(chain_root=b"root")
    sequence = SimpleNamespace(may_read_cache=True, block_hashes=hashes, request=request)
    limit = rng.randint(0, num_hashes)

    def needed(length: int) -> list[list[int]]:
        """For each group, the blocks that the token after `length` blocks attends to."""
        first = [first_seen(group, length * size) for group in kv_groups]
        return [sorted({position // size for position in range(each, length * size)}) for each in first]

    def is_there(length: int) -> bool:
        return all((group, index) in known for group, each in enumerate(needed(length)) for index in each)

    longest = max(length for length in range(limit + 1) if is_there(length))
    expected = [[RELEASED] * longest for _ in kv_groups]
    for group, each in enumerate(needed(longest)):
        for index in each:
            expected[group][index] = known[group, index]
    [found] = cache.find(sequence, None, limit)
    assert (found.tables, found.num_tokens, found.tail) == (expected, longest * size, ())


@pytest.mark.parametrize("other", [{"window": 3}, {"attention_chunk": 3}])
def test_a_state_group_has_neither_window_nor_attention_chunk(other):
    with pytest.raises(ValueError, match="it has neither"):
        KVGroup(is_state=True, **other)


def test_a_hybrid_holds_its_last_states_whatever_its_context():
    groups = KVGroups.of((KVGroup(), KVGroup(is_state=True)), 16, 64)
    assert groups.num_blocks_for(1_000_000) == 1_000_000 // 16 + 64 // 16 + 1
    assert groups.first_needed(4096) == [0, 255], "the state after 4096 tokens"
    assert groups.first_needed(4097) == [0, 256]
    alone = KVGroups.of((KVGroup(is_state=True),), 512, 2048)
    assert alone.capacity_tokens(5) > 10**9
    assert alone.capacity_tokens(1) == 512


def test_equal_tokens_have_a_separate_key_in_each_group():
    hashes = [bytes([index]) * 32 for index in range(256)]
    names = [name for group in range(257) for name in keys_of(group, hashes)]
    assert len(set(names)) == len(names)
    assert keys_of(0, hashes) == hashes

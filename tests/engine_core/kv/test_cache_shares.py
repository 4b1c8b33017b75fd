"""Whose cached blocks are evicted: tenants share the prefix cache."""

from paged_serve.engine_core.kv.block_pool import BlockPool


def leave(pool: BlockPool, tenant: str, count: int, first: int = 0) -> list[bytes]:
    """Computes and releases `count` blocks; returns their hashes."""
    names = [f"{tenant} {first + i}".encode() for i in range(count)]
    blocks = pool.allocate(count, [tenant])
    pool.publish(blocks, names)
    pool.release(reversed(blocks))
    return names


def test_a_tenant_that_floods_the_cache_evicts_its_own_blocks():
    pool = BlockPool(32)
    mine, yours = leave(pool, "mine", 10), leave(pool, "yours", 10)
    for i in range(100):
        leave(pool, "flood", 5, first=5 * i)
        assert len(pool.find(mine)) == len(pool.find(yours)) == 10
        pool.share(found := pool.find(mine))  # the tenant uses its blocks again from time to time
        pool.release(reversed(found))
        pool.share(found := pool.find(yours))
        pool.release(reversed(found))
    assert pool.num_cached == 32


def test_no_tenant_keeps_more_than_an_equal_share_against_others():
    pool = BlockPool(32)
    first = leave(pool, "first", 32)
    for i in range(8):
        leave(pool, "second", 4, first=4 * i)
    assert len(pool.find(first)) == 16
    assert len(pool.find([f"second {i}".encode() for i in range(16, 32)])) == 16


def test_blocks_that_are_never_found_again_are_evicted_in_time():
    pool = BlockPool(32)
    left = leave(pool, "left", 10)
    for i in range(8 * 32 // 4 + 4):
        leave(pool, "busy", 4, first=4 * i)
    assert pool.find(left)
    for i in range(100, 108):
        leave(pool, "busy", 4, first=4 * i)
    assert not pool.find(left)


def test_running_sequences_may_take_every_cached_block():
    pool = BlockPool(32)
    left = leave(pool, "left", 10)
    pool.allocate(22)
    assert len(pool.find(left)) == 10
    pool.allocate(10)
    assert not pool.find(left)

"""Bugs of the KV cache: its blocks, prefixes, groups, copies and tiers."""

POOL = "engine_core/kv/block_pool.py"
CACHE = "engine_core/kv/kv_cache.py"
PREFIX = "engine_core/kv/prefix_cache.py"
GROUP = "engine_core/kv/kv_group.py"
STARTUP = "protocol/messages/loading/startup.py"
HASH = "protocol/block_hash.py"
TAILS = "engine_core/kv/tails.py"
COPIES = "engine_core/kv/block_copies.py"
FAKE_WORKER = "engine_core/simulation/fake_workers/fake_worker.py"
TIERS = "engine_core/kv/tiers/tiers.py"

KV_MUTATIONS = [
    (
        POOL,
        "            refcounts[block] -= 1\n",
        "            refcounts[block] = 0\n",
        "a shared block is freed by its first owner",
    ),
    (
        POOL,
        "        self._cached.remove(free)\n",
        "        pass\n",
        "a block is both shared and free",
    ),
    (POOL, "self._drop_hashes(evicted)", "pass", "a stale hash"),
    (POOL, "self._events.removed(hashes)", "pass", "followers still find an evicted block"),
    (POOL, "if block_hash not in self._block_by_hash and block", "if block", "two blocks have one hash"),
    (POOL, "end = blocks.index(None) if None in blocks else len(blocks)", "end = len(blocks)", "a prefix with a hole"),
    (CACHE, "(sequence.num_tokens - 1) // self", "sequence.num_tokens // self", "nothing is left to compute"),
    (CACHE, "self.pool = BlockPool(self.pool.num_blocks, self.events)", "pass", "contents of dead workers are found"),
    (CACHE, "self.events.cleared()", "pass", "followers still find what dead workers had"),
    (
        PREFIX,
        "num_tokens // self._block_size\n        if end > start",
        "-(-num_tokens // self._block_size)\n        if end > start",
        "half a block is published",
    ),
    (
        CACHE,
        "        self.pool.invalidate(_blocks_of(sequence.block_tables))\n",
        "        pass\n",
        "poisoned blocks are still found",
    ),
    (GROUP, "position - self.window + 1)", "position - self.window + 2)", "a block in the window is released"),
    (GROUP, "    if not index:\n", "    if True:\n", "groups share blocks with each other"),
    (GROUP, "(num_seen - 2) // self.block_size + 2)", "num_seen // self.block_size)", "a chunk has too few blocks"),
    (GROUP, "STATE_WINDOW = 2 ", "STATE_WINDOW = 1 ", "the state from which a row goes on is released"),
    (STARTUP, " or self.is_state)\n", ")\n", "a state group is a full group with too few blocks"),
    (
        GROUP,
        "return position // self.attention_chunk",
        "return (position + 1) // self.attention_chunk",
        "an attention chunk is released before its last token",
    ),
    (
        GROUP,
        "position // self.attention_chunk * self.attention_chunk // self.block_size",
        "-(-(position // self.attention_chunk * self.attention_chunk) // self.block_size)",
        "the block in which an attention chunk begins is released and not needed for a hit",
    ),
    (
        GROUP,
        "self.block_size - gcd(self.attention_chunk, self.block_size)",
        "0",
        "a row has too few blocks for an attention chunk that begins within one",
    ),
    (GROUP, "if group.attention_chunk:", "if False:", "attention chunks are never released"),
    (PREFIX, "if block == RELEASED:", "if False:", "a prefix with a hole in its window"),
    (
        PREFIX,
        "first = self._groups.first_needed(end * self._block_size)\n                        break",
        "break",
        "a shorter prefix has the window of a longer one",
    ),
    (PREFIX, "min(end, len(sequence.block_hashes))", "end + 1", "a block is found before it is planned"),
    (
        PREFIX,
        "sequence.block_hashes[:limit] if",
        "sequence.block_hashes if",
        "nothing is left to compute of a prompt that was cached",
    ),
    (CACHE, "self.prefix_cache.invalidate_behind(sequence)", "pass", "poisoned blocks are found behind the window"),
    (
        CACHE,
        "if sequence.joined_step else sequence.span[0]",
        "if sequence.joined_step else sequence.span[1]",
        "blocks that the next chunk reads are released",
    ),
    (CACHE, "if not sequence.num_nans:\n", "if True:\n", "poisoned blocks are found after their release"),
    (HASH, ".encode() + cache_salt.encode()", ".encode()", "salts mix"),
    (CACHE, " - self.pool.num_free_among([*shared, *sources])", "", "free blocks counted twice"),
    (TAILS, "            return applied\n", "            return applied + 1\n", "a tail is one token too long"),
    (TAILS, "return planned if is_known", "return applied if is_known", "a tail's state is that of a later token"),
    (TAILS, "if end >= sequence.num_tokens:", "if False:", "nothing is left to compute after a tail"),
    (
        TAILS,
        "start = num_blocks * self._block_size\n        return",
        "start = num_blocks * self._block_size + 1\n        return",
        "the first token of a tail may differ",
    ),
    (COPIES, "        self._pool.share(sources)\n", "", "the source of a copy is evicted early"),
    (
        COPIES,
        "return [self._source_of.get(block, block) for block in blocks]",
        "return [*blocks]",
        "a block is copied from one that is still to be copied",
    ),
    (
        FAKE_WORKER,
        "        self.cache.copy_blocks(unpack_ids(plan.copied_blocks).tolist())\n",
        "        self.cache.copy_blocks(getattr(plan, 'nothing', []))\n",
        "blocks are not copied before the forward pass",
    ),
    (TIERS, "            pool.share(blocks)\n", "", "a block that is being stored has no owner"),
    (
        TIERS,
        "if pool.hash_of(block) == key and key",
        "if key",
        "a block is stored under the hash of its contents before",
    ),
    (TIERS, "        transfer.failed.update(unpack_ids(message.failed))\n", "", "a torn block is published"),
    (
        TIERS,
        "        if transfer.waits_for:\n",
        "        if False:\n",
        "a rank that has not answered is not waited for",
    ),
    (
        CACHE,
        "            self.open_tiers(self.tiers.num_ranks, self.tiers.bytes_per_block, self.tiers.index.medium)\n",
        "            pass\n",
        "transfers of dead workers are still waited for",
    ),
    (CACHE, "        self.pool.release(reversed(transfer.owned))\n", "", "the blocks of a transfer are lost"),
]

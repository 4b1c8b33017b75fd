"""Bugs to plant in scheduler, pool, outbox, recovery and client session: each must make the simulations fail.

Each entry: (file, a text that occurs once, its replacement, the effect of the bug).
"""

SCHEDULER, POOL, CACHE = (
    "engine_core/scheduling/scheduler.py",
    "engine_core/kv/block_pool.py",
    "engine_core/kv/kv_cache.py",
)
ROW_ASSIGNER = "engine_core/scheduling/row_assigner.py"
PREFIX, GROUP = "engine_core/kv/prefix_cache.py", "engine_core/kv/kv_group.py"
STARTUP = "protocol/messages/loading/startup.py"
TAILS, COPIES = "engine_core/kv/tails.py", "engine_core/kv/block_copies.py"
FORKS, FAKE_WORKER = "engine_core/requests/forks.py", "engine_core/simulation/fake_workers/fake_worker.py"
SPECULATION, SPECULATING = "engine_core/scheduling/speculation.py", "engine_core/requests/speculating.py"
STEP, VERIFICATIONS = "engine_core/scheduling/scheduled_step.py", "engine_core/engine/verifications.py"
ENGINE, OUTBOX, DECODE = (
    "engine_core/engine/engine.py",
    "engine_core/engine/clients/client_outbox.py",
    "engine_core/scheduling/decode_set.py",
)
HASH, REQUEST, OUTPUTS = "protocol/block_hash.py", "engine_core/requests/request.py", "engine_core/engine/outputs.py"
RESULTS, STOPPING, WORKER_POISON = (
    "engine_core/engine/step_results.py",
    "engine_core/requests/stopping.py",
    "engine_core/scheduling/worker_poison.py",
)
CORE_POISON, WITHHELD = "engine_core/admission/core_poison.py", "frontend/client/dispatch.py"
ADMISSION = "engine_core/admission/admission.py"
POOLING = "engine_core/admission/pooling.py"
ABANDONED = "engine_core/admission/abandoned_requests.py"
SESSION, STREAMS = "frontend/client/session.py", "frontend/client/streams/stream_table.py"
DISPATCH = "frontend/client/dispatch.py"
TIERS, LOADING = "engine_core/kv/tiers/tiers.py", "engine_core/scheduling/loading.py"

MUTATIONS = [
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
    (
        SCHEDULER,
        "            others = self.prefilling + others\n",
        "            pass\n",
        "a chunk has no blocks behind what was reserved",
    ),
    (SCHEDULER, "            self.kv_cache.release_behind(due)\n", "", "nothing is released behind windows"),
    (CACHE, "if not sequence.num_nans:\n", "if True:\n", "poisoned blocks are found after their release"),
    (
        REQUEST,
        "logprobs_missing or self.num_nans)",
        "logprobs_missing)",
        "a sequence reads its own poisoned blocks again",
    ),
    (HASH, ".encode() + cache_salt.encode()", ".encode()", "salts mix"),
    (CACHE, " - self.pool.num_free_among([*shared, *sources])", "", "free blocks counted twice"),
    (
        RESULTS,
        "if chunk.discarded:\n            if index in bad",
        "if False:\n            if index in bad",
        "outputs of an aborted chunk",
    ),
    (
        RESULTS,
        "_without(decode, tokens, plan.discarded | bad | failures.keys())",
        "_without(decode, tokens, bad | failures.keys())",
        "an output of a row that has left",
    ),
    (ENGINE, "        scheduler.restart()\n", "", "nothing is requeued when workers die"),
    (
        OUTPUTS,
        "position=len(output) - num_tokens,",
        "position=len(output) - num_tokens + 1,",
        "positions are one too high",
    ),
    (
        REQUEST,
        "return self.num_tokens - 1 if self.num_tokens > self.prefill_len else self.num_applied",
        "return self.num_tokens if self.num_tokens > self.prefill_len else self.num_applied",
        "a block is published before its last token is applied, or with a wrong draft",
    ),
    (
        SPECULATING,
        "self.longest + self.num_granted",
        "self.longest + self.num_granted - 1",
        "a block too few is booked for drafts",
    ),
    (SPECULATING, "return self.shortest - 1, self", "return self.longest - 1, self", "a window moves with drafts"),
    (SPECULATING, "        self.base += num_tokens\n", "        self.base += 1\n", "accepted drafts are not counted"),
    (REQUEST, "next_step - self.joined_step if", "next_step - self.joined_step - 1 if", "a decode step is forgotten"),
    (VERIFICATIONS, "            break\n", "            continue\n", "a sequence goes on after its stop token"),
    (
        STEP,
        "        yield from self.verifications\n",
        "        yield from ()\n",
        "verifications in flight are forgotten when their sequence is preempted",
    ),
    (
        SPECULATION,
        "sequence.token_limit - bounds.longest - 1,",
        "sequence.token_limit - bounds.longest,",
        "drafts exceed the length limit",
    ),
    (
        SPECULATION,
        "return not bounds.num_drafts and",
        "return",
        "a sequence joins the decode set although its length is open",
    ),
    (
        ENGINE,
        "            self.scheduler.finish(sequences)\n            self.endings",
        "            self.endings",
        "the streams of a dead client continue",
    ),
    (
        ADMISSION,
        "        if (running := own.running(message)) is not None:",
        "        if (running := None) is not None:",
        "a repeated request is refused",
    ),
    (
        OUTBOX,
        "PendingOutput.of(sequence, len(sequence.output) - (stream_id in in_columns))",
        "PendingOutput.of(sequence, len(sequence.output))",
        "a token is lost when a client falls behind",
    ),
    (
        OUTBOX,
        "        self.credit = min(self.credit + frames",
        "        self.credit = min(self.credit + frames + 1",
        "a client gets too much credit",
    ),
    (
        OUTBOX,
        "if all(entry.is_delivered for entry in pending.values()):",
        "if True:",
        "output that a slow client has not received is dropped",
    ),
    (ROW_ASSIGNER, "or first.num_passed >= self.max_passes", "", "a large request waits forever"),
    (
        ROW_ASSIGNER,
        "                    each.num_passed += 1\n",
        "                    pass\n",
        "passes are not counted",
    ),
    (DECODE, "prompt_len + 1  # in", "prompt_len  # in", "decode positions are one too low"),
    (WORKER_POISON, "if alone is not None and len", "if False and len", "poison is never found"),
    (
        DISPATCH,
        "            if request.sent_epoch != self.epoch and",
        "            if False and",
        "nothing is sent to a new core",
    ),
    (
        DISPATCH,
        "            if dropped and request.sent_epoch is not None:",
        "            if False:",
        "a client that was removed waits forever",
    ),
    (
        WITHHELD,
        "turns.get(request.sent_epoch) == 0",
        "False",
        "no request is ever a candidate after a core's death",
    ),
    (
        WITHHELD,
        "self._isolated if self._isolation in turns.items() else None",
        "self._isolated if self._isolation[0] in turns else None",
        "a request that was isolated once counts as poison at any later death",
    ),
    (WITHHELD, "        self._isolated = None\n        return True", "        return True", "an isolation never ends"),
    (
        CORE_POISON,
        "        if client == self._holder:\n            self._end_turn()\n",
        "",
        "a dead client keeps the turn",
    ),
    (
        CORE_POISON,
        "came = self._deferred.popleft()",
        "came = self._deferred[0]",
        "a deferred message is handled repeatedly",
    ),
    (
        ABANDONED,
        "for sequence in request.sequences)\n        abandoned",
        "for sequence in request.sequences[::-1])\n        abandoned",
        "siblings reuse each other's output",
    ),
    (
        OUTPUTS,
        "EngineCoreOutput(sequence.stream_id, 0,",
        "EngineCoreOutput(sequence.stream_id, 1,",
        "reused tokens start at position 1",
    ),
    (
        ABANDONED,
        "if each.key == key)",
        "if True)",
        "an answer to another key about the same prompt is reused",
    ),
    (SESSION, "        self._frames += 1\n", "", "nothing is ever acknowledged"),
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
    (
        FORKS,
        "sequence.num_scheduled == sequence.request.num_shareable_tokens",
        "sequence.num_scheduled >= sequence.request.num_shareable_tokens",
        "siblings copy a state that the leader has left behind",
    ),
    (FORKS, "            request.fork = None\n", "            pass\n", "siblings copy a state after its step"),
    (
        POOLING,
        "pooling.task in PER_TOKEN or self.needs_whole_prompt",
        "self.needs_whole_prompt",
        "vectors of tokens from the prefix cache are missing",
    ),
    (
        ROW_ASSIGNER,
        "return self._cuts_prompts or sequence.num_tokens <= budget",
        "return self._cuts_prompts or sequence.num_tokens <= budget + 1",
        "a bidirectional prompt is divided into chunks",
    ),
    (
        RESULTS,
        "            results.pooled[chunk.sequence] = pooled\n",
        "",
        "a sequence ends without its vector",
    ),
    (
        RESULTS,
        "        if chunk.discarded:\n            if pooled is None:",
        "        if False:\n            if pooled is None:",
        "a vector of a released row is delivered",
    ),
    (
        STREAMS,
        "tuple(pack_ids(stream.received) for",
        "tuple(pack_ids(stream.received[1:]) for",
        "a new core is sent fewer tokens than there are",
    ),
    (
        STREAMS,
        "            if len(received) == first + advance:",
        "            if len(received) <= first + advance:",
        "a gap is not detected",
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
    (
        LOADING,
        "        sequences, self._transfer_of = self._transfer_of, {}\n",
        "        sequences = ()\n",
        "sequences wait for loads of dead workers",
    ),
    (
        LOADING,
        "        self._transfer_with.clear()\n",
        "",
        "sequences wait for a load that dead workers have forgotten",
    ),
]

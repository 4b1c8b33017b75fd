"""Bugs that requests meet on their way: in admission, scheduling, results, and clients."""

SCHEDULER = "engine_core/scheduling/scheduler.py"
REQUEST = "engine_core/requests/request.py"
RESULTS = "engine_core/engine/step_results.py"
ENGINE = "engine_core/engine/engine.py"
OUTPUTS = "engine_core/engine/outputs.py"
SPECULATING = "engine_core/requests/speculating.py"
VERIFICATIONS = "engine_core/engine/verifications.py"
STEP = "engine_core/scheduling/scheduled_step.py"
SPECULATION = "engine_core/scheduling/speculation.py"
ADMISSION = "engine_core/admission/admission.py"
OUTBOX = "engine_core/engine/clients/client_outbox.py"
ROW_ASSIGNER = "engine_core/scheduling/row_assigner.py"
DECODE = "engine_core/scheduling/decode_set.py"
WORKER_POISON = "engine_core/scheduling/worker_poison.py"
DISPATCH = "frontend/client/session/dispatch.py"
WITHHELD = "frontend/client/session/withheld_requests.py"
CORE_POISON = "engine_core/admission/core_poison.py"
ABANDONED = "engine_core/admission/abandoned_requests.py"
SESSION = "frontend/client/session/session.py"
FORKS = "engine_core/requests/forks.py"
POOLING = "engine_core/admission/pooling.py"
STREAMS = "frontend/client/streams/stream_table.py"
LOADING = "engine_core/scheduling/loading.py"

REQUEST_MUTATIONS = [
    (
        SCHEDULER,
        "            others = self.prefilling + others\n",
        "            pass\n",
        "a chunk has no blocks behind what was reserved",
    ),
    (SCHEDULER, "self.kv_cache.release_behind(due)", "pass", "nothing is released behind windows"),
    (
        REQUEST,
        "logprobs_missing or self.num_nans)",
        "logprobs_missing)",
        "a sequence reads its own poisoned blocks again",
    ),
    (
        RESULTS,
        "if chunk.discarded:\n        if is_bad",
        "if False:\n        if is_bad",
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
    (ROW_ASSIGNER, "or first.num_passed >= self.max_passes", "", "a large request waits forever"),
    (
        ROW_ASSIGNER,
        "                    each.num_passed += 1\n",
        "                    pass\n",
        "passes are not counted",
    ),
    (DECODE, "prompt_len + 1  # in", "prompt_len  # in", "decode positions are one too low"),
    (WORKER_POISON, "if alone is None or len", "if True or len", "poison is never found"),
    (
        WORKER_POISON,
        "1 + (self._num_isolations if alone is self._last_isolated else 0)",
        "1",
        "a poison request is isolated forever",
    ),
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
    (
        LOADING,
        "        sequences, self._transfer_of = self._transfer_of, {}\n",
        "        sequences = ()\n",
        "sequences wait for loads of dead workers",
    ),
]

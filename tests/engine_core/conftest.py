"""An engine, a fake worker and a client that collects what it receives."""

import dataclasses
import random
from collections import defaultdict, deque

import pytest

from paged_serve.engine_core.admission.pooling import PoolingFacts
from paged_serve.engine_core.admission.validation import ModelFacts
from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.engine_core.simulation.fake_workers.fake_row import FakeDrafter
from paged_serve.engine_core.simulation.fake_workers.fake_worker import FakeWorker
from paged_serve.protocol.messages.config import (
    CacheConfig,
    Config,
    KVEventsConfig,
    LoraConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    RequestRejected,
)
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import pack_ids, unpack_ids, unpack_int64
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

CLIENT = b"client:0"
EOS = 0


class Driver:
    """Runs an engine step by step; the accounting is checked after each."""

    def __init__(
        self,
        *,
        num_blocks=64,
        block_size=4,
        max_model_len=64,
        vocab_size=100_000,
        prefix_caching=True,
        eos=(EOS,),
        is_nan=lambda: False,
        epoch=0,
        pooling=None,
        windows=(0,),
        kv_events="",
        num_drafts=0,
        accuracy=0.7,
        adaptive=True,
        draft_policy=None,
        max_loras=0,
        **scheduler,
    ):
        self.config = Config(
            cache=CacheConfig(enable_prefix_caching=prefix_caching),
            kv_events=KVEventsConfig(kv_events),
            scheduler=SchedulerConfig(**{"pipeline_depth": 1, **scheduler}),
            speculation=SpeculationConfig("ngram", num_drafts, adaptive) if num_drafts else SpeculationConfig("off"),
            lora=LoraConfig(max_loras),
        )
        pooling = PoolingFacts() if pooling is None else pooling
        groups = tuple(each if isinstance(each, KVGroup) else KVGroup(each) for each in windows)
        self.facts = ModelFacts(
            num_blocks, block_size, max_model_len, vocab_size, frozenset(eos), pooling=pooling, kv_groups=groups
        )
        self.engine = EngineCore(self.config, self.facts, epoch)
        if draft_policy is not None:
            self.engine.scheduler.speculation.policy = draft_policy(num_drafts)
        self.worker = FakeWorker(
            num_blocks,
            block_size,
            vocab_size,
            0,
            is_nan,
            groups=groups,
            needs_whole_prompt=pooling.needs_whole_prompt,
            drafter=FakeDrafter(random.Random(7), accuracy, vocab_size),
        )
        self.digests = {}  # by place
        self.worker.digest_at = lambda place: self.digests[place] if place else ""
        self.loads = []  # sent and not answered
        self.loads_at_once = True
        self.plans = deque()  # sent and not executed yet
        self.answers = deque()
        self.sent = []  # every plan
        self.messages = []
        self.tokens = defaultdict(list)  # stream id -> output
        self.ends = {}  # stream id -> the output that carried the finish_reason
        self.firsts = {}  # stream id -> its first EngineCoreOutput
        self.rejections = []
        self.now = 0.0
        self.num_added = 0
        self.engine.add_client(CLIENT, self.now)

    @property
    def scheduler(self):
        return self.engine.scheduler

    def add(
        self,
        prompt,
        *,
        client=CLIENT,
        request_id=None,
        priority=0,
        salt="",
        resume=(),
        tenant="",
        weight=1.0,
        ttl=0.0,
        isolation_tokens=0,
        pooling=None,
        adapter=None,
        resumed=None,
        **params,
    ):
        """Returns the request's id; `prompt` is a list of token ids or a length."""
        if isinstance(prompt, int):
            prompt = [1 + i % 97 for i in range(prompt)]
        self.num_added += 1
        request_id = self.num_added * 1000 if request_id is None else request_id
        defaults = {"max_tokens": None, "ignore_eos": True} if pooling is None else {}
        params = SamplingParams(**{**defaults, **params})
        request = EngineCoreRequest(
            request_id,
            pack_ids(prompt),
            params,
            priority,
            salt,
            tuple(pack_ids(ids) for ids in resume),
            tenant,
            weight,
            ttl,
            isolation_tokens,
            pooling,
            adapter,
            any(resume) if resumed is None else resumed,
        )
        self.take(self.engine.add_request(client, request, self.now))
        check_invariants(self.engine)
        return request_id

    def abort(self, *stream_ids, client=CLIENT, reason=FinishReason.ABORT):
        self.take(self.engine.abort(client, AbortRequests(stream_ids, reason), self.now))
        check_invariants(self.engine)

    def send_loads(self):
        for load in self.engine.take_loads():
            self.digests.pop(load.place, None)
            self.loads.append(load)
        check_invariants(self.engine)

    def finish_load(self, error="", num_ranks=1, rank=0, load=None):
        """All ranks but the last leave the load unanswered."""
        load = load or self.loads[0]
        if rank == num_ranks - 1:
            self.loads.remove(load)
            if not error:
                self.digests[load.place] = load.adapter.digest
        answer = AdapterLoaded(rank, load.place, load.adapter.digest, 1000, error)
        self.take(self.engine.adapter_loaded(answer, num_ranks, self.now))
        check_invariants(self.engine)

    def plan(self):
        self.send_loads()
        while self.loads and self.loads_at_once:
            self.finish_load()
        plan = self.engine.plan(self.now)
        if plan is not None:
            self.plans.append(plan)
            self.sent.append(plan)
        check_invariants(self.engine)
        return plan

    def execute(self):
        self.answers.append(self.worker.execute(self.plans.popleft()))

    def apply(self, change=lambda answer: answer):
        self.now += 0.01
        self.take(self.engine.apply(change(self.answers.popleft()), self.now))
        check_invariants(self.engine)

    def step(self, count=1):
        """Plan as far ahead as the depth allows, then apply one answer; `count` times or until nothing runs."""
        for _ in range(count):
            while self.plan() is not None:
                self.execute()
            if not self.answers:
                return False
            self.apply()
        return True

    def run(self, max_steps=2000):
        for _ in range(max_steps):
            if not self.step():
                assert self.engine.is_idle, "a sequence waits but none runs"
                return self
        raise AssertionError("never ends")

    def take(self, outgoing):
        for client, message in outgoing:
            self.messages.append((client, message))
            if isinstance(message, RequestRejected):
                self.rejections.append(message)
            elif isinstance(message, EngineCoreOutputs):
                self.read(message)
                if client in self.engine.clients:
                    self.take(self.engine.outputs_received(client, 1))

    def read(self, message):
        if message.columns is not None:
            columns = message.columns
            ids, firsts = unpack_int64(columns.stream_ids), unpack_ids(columns.first_positions)
            for stream, first, token in zip(ids, firsts, unpack_ids(columns.token_ids), strict=True):
                assert first + columns.advance == len(self.tokens[stream])
                self.tokens[stream].append(token)
        for output in message.outputs:
            assert output.position == len(self.tokens[output.stream_id])
            self.firsts.setdefault(output.stream_id, output)
            self.tokens[output.stream_id] += unpack_ids(output.token_ids)
            if output.finish_reason is not None:
                assert output.stream_id not in self.ends
                self.ends[output.stream_id] = output

    def sequence(self, stream_id, client=CLIENT):
        return self.engine.clients[client].streams[stream_id]

    def replace(self, **changes):
        """The same facts with changes, in a new driver."""
        return dataclasses.replace(self.facts, **changes)


@pytest.fixture
def drive():
    return Driver

"""Real sessions and the real engine under one virtual clock: crashes, hangs, pauses, stale frames, aborts, full pools.

The workers (FakeWorker), the links (queues that lose and delay messages as sockets do when a process dies) and the time
are simulated. The oracle is each request computed alone. A seed determines everything, including the trace.
"""

import hashlib
import random
from collections.abc import Iterable

import msgspec

from paged_serve.engine_core.simulation.scenarios.scenario import Scenario, draw_scenario
from paged_serve.protocol.messages.engine_core import CoreFailure, EngineFailed, FromEngineCore

from .core_host import CoreDied, CoreHost
from .reader import Reader

BUSY_TICKS, CALM_TICKS = 1500, 60_000
LEASE_TICKS = 1500  # of 20 ms: longer than a client's lease and any silence
FAULTS = (
    *("worker dies", "worker hangs", "core dies", "core sleeps", "client sleeps", "client dies"),
    *("client is forgotten", "clock jumps", "a slot is spoiled"),
)
COUNTED = ("streams", "vectors", "preemptions", "expired", "gave up")


class World:
    def __init__(self, seed: int, core_poison: int = 0):
        """`core_poison`: requests whose seed is a multiple of it crash cores; 0: none does."""
        self.rng = random.Random(f"world {seed}")
        self.scenario: Scenario = draw_scenario(seed, may_have_tiers=False)  # the host's workers have none
        self.now = 100.0
        self.counts = dict.fromkeys((*FAULTS, *COUNTED, "core dies of a request"), 0)
        self._fault_rate = self.rng.choice((0.002, 0.01, 0.03))
        self._trace = hashlib.sha256()
        self._epoch = 0
        self._num_readers = 0
        self._core_poison = core_poison
        self._failures: tuple[CoreFailure, ...] = ()  # as the supervisor counts them
        self._core: CoreHost | None = self._new_core()
        self._core_is_back_at = self._core_asleep_until = self.now
        self._dead_names: set[bytes] = set()
        self._readers = [self._new_reader() for _ in range(self.scenario.num_clients)]

    @property
    def trace_hash(self) -> str:
        return self._trace.hexdigest()

    def run(self) -> None:
        for _ in range(BUSY_TICKS):
            self._turn()
            if self.rng.random() < self._fault_rate:
                self._break(self.rng.choice(FAULTS))
            if self.rng.random() < 0.03:
                self.rng.choice(self._readers).submit(self.rng)
            if self.rng.random() < self.scenario.abort:
                self.rng.choice(self._readers).abort(self.rng)
        for _ in range(CALM_TICKS):
            self._turn()
            if all(reader.is_done for reader in self._readers):
                break
        for _ in range(LEASE_TICKS):
            self._turn()
        assert self._core is not None
        self._core.check_all_free()
        self.counts["preemptions"] += self._core.engine.scheduler.num_preemptions
        for reader in self._readers:
            reader.check()
            self.counts["streams"] += sum(len(reading.tokens) for reading in reader.readings)
            self.counts["vectors"] += sum(reading.received_vector is not None for reading in reader.readings)
            self.counts["expired"] += sum(reading.has_expired for reading in reader.readings)
            self.counts["gave up"] += sum(len(reading.given_up) for reading in reader.readings)
            assert not reader.session.table.requests, "the session keeps a request that has ended"

    def _new_reader(self) -> Reader:
        self._num_readers += 1
        return Reader(b"client:%d" % self._num_readers, self.scenario, self.now, self._core_poison)

    def _new_core(self) -> CoreHost:
        return CoreHost(self.scenario, self._epoch, self.rng, self.now, self._core_poison, self._failures)

    def _turn(self) -> None:
        rng = self.rng
        self.now += rng.random() * 0.04
        if self._core is None and self.now >= self._core_is_back_at:
            self._epoch += 1
            self._core = self._new_core()
        if self._core is not None and self.now >= self._core_asleep_until:
            try:
                self._run_core(self._core)
            except CoreDied:
                self._note_seeds(self._core)
                self.counts["core dies of a request"] += 1
                failure = CoreFailure(self._epoch, self._core.recorded_turn)
                self._failures = (*self._failures, failure)[-16:]
                self._kill_core(self._core)
        for reader in self._readers:
            if self.now >= reader.asleep_until:
                self._run_client(reader)

    def _run_core(self, core: CoreHost) -> None:
        for reader in self._readers:
            while reader.to_core and self.rng.random() < 0.8:
                message = reader.to_core.popleft()
                self._send(core.receive(reader.name, message, self.now))
                self._note_seeds(core)
        self._send(core.iterate(self.now))
        self._note_seeds(core)

    def _note_seeds(self, core: CoreHost) -> None:
        """Pass the seeds of the requests that the core has just accepted to their readers."""
        readers = {reader.name: reader for reader in self._readers}
        while core.taken:
            name, message, seeds = core.taken.popleft()
            if name in readers:
                readers[name].taken(message, seeds)

    def _run_client(self, reader: Reader) -> None:
        rng, session = self.rng, reader.session
        while rng.random() < 0.9 and (reader.to_client or reader.stale):
            queue = reader.stale if reader.stale and (not reader.to_client or rng.random() < 0.5) else reader.to_client
            session.receive(queue.popleft(), self.now)
        session.tick(self.now)
        session.flush(lambda message: self._take(reader, message))
        reader.read(rng)

    def _take(self, reader: Reader, message: object) -> bool:
        """Whether the link accepts the message: never without its other end, and not always if it is full."""
        if self._core is None or self.rng.random() < 0.01:
            return False
        self._trace.update(msgspec.msgpack.encode(message))
        reader.to_core.append(message)
        return True

    def _send(self, outgoing: Iterable[tuple[bytes, FromEngineCore]]) -> None:
        links = {reader.name: reader.to_client for reader in self._readers}
        for name, message in outgoing:
            self._trace.update(msgspec.msgpack.encode(message))
            if name not in self._dead_names:
                links[name].append(message)

    def _break(self, fault: str) -> None:
        rng, core = self.rng, self._core
        self.counts[fault] += 1
        match fault:
            case "worker dies" if core is not None:
                self._send(core.replace_workers(self.now))
            case "worker hangs" if core is not None:
                core.hang_workers(self.now)
            case "core dies" if core is not None:
                self._kill_core(core)
            case "core sleeps":
                self._core_asleep_until = self.now + rng.uniform(0, 15)
            case "client sleeps":
                rng.choice(self._readers).asleep_until = self.now + rng.uniform(0, 15)
            case "client dies":
                index = rng.randrange(len(self._readers))
                self._dead_names.add(self._readers[index].name)
                self._readers[index] = self._new_reader()
            case "client is forgotten" if core is not None and core.engine.clients:
                core.remove(rng.choice(list(core.engine.clients)), self.now)
            case "a slot is spoiled" if core is not None:
                core.spoil_a_slot()
            case "clock jumps":
                self.now += rng.uniform(0, 30)

    def _kill_core(self, core: CoreHost) -> None:
        """Messages to the core are lost; those that it has sent arrive late, twice, or not at all."""
        rng = self.rng
        for reader in self._readers:
            reader.to_core.clear()
            sent = list(reader.to_client)
            reader.to_client.clear()
            reader.stale.extend(sent[: rng.randint(0, len(sent))])
            if sent and rng.random() < 0.3:
                reader.stale.extend(sent[: rng.randint(1, len(sent))])
            if rng.random() < 0.3:
                reader.stale.append(EngineFailed("the core dies"))
        self.counts["preemptions"] += core.engine.scheduler.num_preemptions
        self._core = None
        self._core_is_back_at = self.now + rng.uniform(0, 4)

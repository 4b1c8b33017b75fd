"""Assigns the workers' places for LoRA adapters. Sequences whose adapter is not loaded are held outside the queue.

Adapters get places in the order in which they were first wanted. A place is free, or that of the adapter without
sequences that was used least recently. If every adapter has sequences, one is closed for each adapter that waits, the
longest loaded first: its sequences run to their end, new ones wait for its next turn. So none waits forever, however
many sequences the others receive and however often workers are lost, and requests for the base model never wait for an
adapter.

A crash of the workers while they load an adapter makes it a candidate: it is loaded again alone, without any steps in
flight. If the workers crash again, it is refused. Candidates of worker_poison.py run while nothing is loaded, for the
same reason.
"""

from collections.abc import Iterable

from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.loading.adapters import Adapter, AdapterLoaded, LoadAdapter
from paged_serve.protocol.messages.stats import AdapterStats

from ..requests.order import insert, remove
from ..requests.request import Sequence, SequenceState
from .adapter_use import AdapterEvent, AdapterState, AdapterUse


class AdapterPlaces:
    """Policy only: the caller sends the messages, and moves sequences between the queue and here."""

    def __init__(self, num_places: int) -> None:
        self.uses: dict[str, AdapterUse] = {}  # by digest
        self.stops_steps = False  # a candidate is loaded, or will be once no step is in flight
        self._places: dict[int, AdapterUse | None] = dict.fromkeys(range(1, num_places + 1))
        self._wanted: list[AdapterUse] = []  # they have held sequences and wait for a place, first come first
        self._count = 0  # of events, for the order by use

    # The sequences

    def admit(self, sequence: Sequence) -> bool:
        """Whether `sequence` may enter the queue; else it is held until its adapter is loaded."""
        adapter = sequence.request.adapter
        if adapter is None:
            return True
        use = self._use_of(adapter)
        if use.state is AdapterState.LOADED and (not use.is_closing or sequence in use.users):
            return self.use(sequence)
        use.users.discard(sequence)
        insert(use.held, sequence)
        if use.state is not AdapterState.LOADING and use not in self._wanted:
            self._wanted.append(use)
        return False

    def use(self, sequence: Sequence) -> bool:
        """Make `sequence` a user of its adapter's place; False if the adapter is not loaded."""
        adapter = sequence.request.adapter
        if adapter is None:
            return True
        use = self.uses.get(adapter.digest)
        if use is None or use.state is not AdapterState.LOADED:
            return False
        use.users.add(sequence)
        use.left_step, use.used, sequence.request.place = None, self._tick(), use.place
        return True

    def leave(self, sequence: Sequence) -> None:
        """`sequence` has ended, or its client is paused: it does not need its place."""
        if sequence.request.adapter is not None and (use := self.uses.get(sequence.request.adapter.digest)) is not None:
            use.users.discard(sequence)
            use.returning.discard(sequence)
            use.used = self._tick()

    def remove_held(self, sequence: Sequence) -> bool:
        """Remove a sequence that is held; False if it is not."""
        adapter = sequence.request.adapter
        use = None if adapter is None else self.uses.get(adapter.digest)
        return use is not None and remove(use.held, sequence)

    def held(self) -> list[Sequence]:
        return [sequence for use in self.uses.values() for sequence in use.held]

    # The places

    def take_loads(self, step: int, oldest: int | None) -> tuple[list[LoadAdapter], list[AdapterUse]]:
        """The adapters to load now, and those whose held sequences may enter the queue again.

        `step`: the last one planned; `oldest`: the first of those in flight.
        """
        if not self.uses:
            return [], []
        self._prune()
        for use in self.uses.values():
            if use.is_idle and use.left_step is None:
                use.left_step = step
        loads: list[LoadAdapter] = []
        self.stops_steps = any(use.is_candidate and use.state is AdapterState.LOADING for use in self.uses.values())
        for use in [] if self.stops_steps else self._wanted[:]:
            place = 0 if use.state is AdapterState.LOADED else self._free_place(oldest)
            if not place:
                continue
            if use.is_candidate and (oldest is not None or self.is_loading):
                self.stops_steps = True
                break
            loads.append(self._load(use, place))
            if use.is_candidate:
                self.stops_steps = True
                break
        return loads, self._close_and_reopen()

    def take_load_for(
        self, candidate: Sequence, *, may_displace: bool
    ) -> tuple[list[LoadAdapter], list[AdapterUse], list[Sequence]]:
        """The adapter of the only sequence that may run now, if it is not loaded; at most one loads at a time.

        Also returns an adapter whose held sequences may enter the queue again, and the sequences that must leave the
        queue because their place was taken. `may_displace`: no row runs and no step is in flight.
        """
        self.stops_steps = self.is_loading
        adapter = candidate.request.adapter
        if adapter is None or self.is_loading or not may_displace:
            return [], [], []
        use, displaced = self._use_of(adapter), list[Sequence]()
        if use.state is AdapterState.LOADED:
            return [], [self._reopen(use)] if use.is_closing else [], []
        place = self._free_place(None)
        if not place:
            victim = min((each for each in self._places.values() if each is not None), key=lambda each: each.used)
            place, displaced = victim.place, sorted(victim.users, key=lambda sequence: sequence.order)
            victim.users.clear()
        load = self._load(use, place)
        self.stops_steps = True
        return [load], [], displaced

    def loaded(self, message: AdapterLoaded, num_ranks: int) -> AdapterUse | None:
        """Record a rank's answer; returns the adapter if all have answered: it is LOADED, or ABSENT with its error.

        Raises ProtocolError, and changes nothing, for an answer to nothing that was sent.
        """
        use = self._places.get(message.place)
        is_due = use is not None and use.state is AdapterState.LOADING and message.rank not in use.answered
        if use is None or not is_due or use.adapter.digest != message.digest:
            raise ProtocolError(f"rank {message.rank} answers for place {message.place}, which loads no such adapter")
        use.answered.add(message.rank)
        use.error = use.error or message.error
        if len(use.answered) < num_ranks:
            return None
        if use.error:
            self._places[use.place] = None
            use.fire(AdapterEvent.FAIL)
        else:
            use.fire(AdapterEvent.SUCCEED)
            use.opened = use.used = self._tick()
            use.is_closing, use.users = bool(use.returning), use.users | use.returning
        use.returning.clear()
        use.is_candidate = False
        return use

    def workers_lost(self, *, from_outside: bool) -> list[AdapterUse]:
        """All places are empty; returns the adapters that are refused, because workers crash whenever they load them.

        The caller puts all sequences into the queue again. Adapters that used a place are the first to have one again.
        """
        refused: list[AdapterUse] = []
        had_place = [use for use in self._places.values() if use is not None and use.has_turn]
        had_place.sort(key=lambda use: use.opened)
        for use in self.uses.values():
            if use.state is AdapterState.LOADING and not from_outside:
                refused += [use] if use.is_candidate else []
                use.is_candidate = True
            use.returning |= use.users if use.is_closing else set()
            use.fire(AdapterEvent.WORKERS_LOST)
            use.users.clear()
        self._places = dict.fromkeys(self._places)
        self._wanted = [*had_place, *(use for use in self._wanted if use not in had_place)]
        self.stops_steps = False
        return refused

    @property
    def is_loading(self) -> bool:
        return any(use is not None and use.state is AdapterState.LOADING for use in self._places.values())

    def stats(self, most: int) -> tuple[AdapterStats, ...]:
        """At most so many adapters, those with sequences first."""
        uses = sorted(self.uses.values(), key=lambda use: (not (use.users or use.held), -use.used))
        return tuple(map(_stats_of, uses[:most]))

    def _use_of(self, adapter: Adapter) -> AdapterUse:
        if (use := self.uses.get(adapter.digest)) is None:
            use = self.uses[adapter.digest] = AdapterUse(adapter)
        if use.state is AdapterState.ABSENT:
            use.adapter = adapter  # the newest path is the likeliest to exist
        return use

    def _free_place(self, oldest: int | None) -> int:
        """A place without an adapter, or with one that nothing needs; 0: there is none."""
        for place, use in self._places.items():
            if use is None:
                return place
        idle = [each for each in self.uses.values() if each.is_idle and _is_answered(each, oldest)]
        return min(idle, key=lambda each: each.used).place if idle else 0

    def _load(self, use: AdapterUse, place: int) -> LoadAdapter:
        if (victim := self._places[place]) is not None:
            victim.fire(AdapterEvent.EVICT)
        if use in self._wanted:
            self._wanted.remove(use)
        self._places[place] = use
        use.fire(AdapterEvent.LOAD)
        use.place, use.error = place, ""
        use.answered.clear()
        return LoadAdapter(place, use.adapter)

    def _close_and_reopen(self) -> list[AdapterUse]:
        """Close as many adapters as the waiting ones need, no more; returns those that are reopened."""
        missing = sum(use.state is AdapterState.ABSENT for use in self._wanted)
        present = [use for use in self._places.values() if use is not None and use.state is AdapterState.LOADED]
        present.sort(key=lambda use: use.opened)
        wanted = max(0, missing - sum(use.is_idle and not use.is_closing for use in present))
        closing = [use for use in present if use.is_closing]
        for use in [use for use in present if use.users and not use.is_closing][: max(0, wanted - len(closing))]:
            use.is_closing = True
        return [self._reopen(use) for use in closing[wanted:]]

    def _reopen(self, use: AdapterUse) -> AdapterUse:
        use.is_closing, use.opened = False, self._tick()
        if use in self._wanted:
            self._wanted.remove(use)
        return use

    def _prune(self) -> None:
        """Forget what no sequence names any more."""
        self._wanted = [use for use in self._wanted if use.held]
        unused = [
            digest
            for digest, use in self.uses.items()
            if use.state is AdapterState.ABSENT and not (use.held or use.is_candidate)
        ]
        for digest in unused:
            del self.uses[digest]

    def _tick(self) -> int:
        self._count += 1
        return self._count

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError for a row without its adapter, a lost sequence, or a place used twice."""
        for place, use in self._places.items():
            assert use is None or (use.place == place and use.state is not AdapterState.ABSENT), "a place is wrong"
        with_place = [use for use in self.uses.values() if use.place]
        assert len(with_place) == sum(use is not None for use in self._places.values()), "an adapter has no place"
        for use in self.uses.values():
            name = use.adapter.name
            assert not (use.users and use.state is not AdapterState.LOADED), f"rows of adapter {name!r} have no place"
            assert all(each.request.place == use.place for each in use.users), f"adapter {name!r}: another place"
            assert use.returning <= set(use.held), f"adapter {name!r} is kept for a sequence that does not wait"
            states = {each.state for each in (*use.users, *use.held)}
            assert SequenceState.FINISHED not in states, f"adapter {name!r} is kept for a sequence that has ended"
            waits = use.state is AdapterState.LOADING or use in self._wanted
            assert waits or not use.held, f"sequences wait for adapter {name!r}, which nothing loads"
        assert len(set(self._wanted)) == len(self._wanted), "an adapter waits twice"
        for sequence in running:
            adapter = sequence.request.adapter
            is_user = adapter is None or sequence in self.uses[adapter.digest].users
            assert is_user, f"stream {sequence.stream_id} runs without its adapter"


def _stats_of(use: AdapterUse) -> AdapterStats:
    num_running = sum(sequence.state is SequenceState.RUNNING for sequence in use.users)
    num_waiting = len(use.users) + len(use.held) - num_running
    return AdapterStats(use.adapter.name, use.state is AdapterState.LOADED, num_running, num_waiting)


def _is_answered(use: AdapterUse, oldest: int | None) -> bool:
    """Whether all steps with rows of an adapter without users are answered."""
    return use.left_step is not None and (oldest is None or oldest > use.left_step)

"""The places of a fake worker for LoRA adapters. Loading takes a while, may be refused, and may kill the worker."""

import random

from paged_serve.protocol.messages.loading.adapters import AdapterLoaded, LoadAdapter

from ..scenarios.adapters import BAD_FOLDER, DEADLY, FICKLE
from ..scenarios.scenario import Scenario, happens
from .worker_died import WorkerDied


class FakePlaces:
    """A place is undefined from LoadAdapter until its adapter is loaded: rows that read it then fail."""

    def __init__(self, scenario: Scenario, epoch: int):
        self._scenario = scenario
        self._rng = random.Random(f"loads of {scenario.seed}, {epoch}")
        self._digests: dict[int, str] = {}  # by place
        self._loading: list[LoadAdapter] = []
        self.num_loaded = 0

    def digest_at(self, place: int) -> str:
        """That of the adapter in `place`; "" for the base model."""
        assert not place or place in self._digests, f"a row reads place {place}, whose adapter is not loaded"
        return self._digests[place] if place else ""

    def begin(self, load: LoadAdapter) -> None:
        assert 1 <= load.place <= self._scenario.config.lora.max_loras, "there is no such place"
        assert all(load.place != other.place for other in self._loading), "a place is loaded twice at once"
        digest = load.adapter.digest
        assert digest not in self._digests.values(), "an adapter that is loaded is loaded again"
        self._digests.pop(load.place, None)
        self._loading.append(load)

    def finish_one(self) -> AdapterLoaded | None:
        """One load may end, in any order. Raises WorkerDied if the adapter crashes the worker."""
        if not self._loading or self._rng.random() >= self._scenario.load_speed:
            return None
        load = self._loading.pop(self._rng.randrange(len(self._loading)))
        if load.adapter.name == DEADLY:
            raise WorkerDied
        is_bad = load.adapter.name == FICKLE and happens(self._rng, 0.5)
        if not is_bad:
            self._digests[load.place] = load.adapter.digest
            self.num_loaded += 1
        return AdapterLoaded(0, load.place, load.adapter.digest, 1000, BAD_FOLDER if is_bad else "")

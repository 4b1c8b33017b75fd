"""Models with adapters in their places."""

import select
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from paged_serve.protocol.messages.config import LoraConfig, ModelConfig
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded, LoadAdapter
from paged_serve.workers.adapters.loading import AdapterLoading
from paged_serve.workers.batch.input_batch import AdapterGroups, adapter_groups
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.layers.model import Model
from paged_serve.workers.models.loading import load_model

from ..tiny_models.made_adapters import MadeAdapter

LORA = LoraConfig(max_loras=4, max_lora_rank=16)


def load(folder: Path, pool=None, group=None, lora: LoraConfig | None = None, **config) -> Model:
    nothing = lambda done, total: None  # noqa: E731
    config = ModelConfig(device="cpu", **config)
    return load_model(str(folder), config, group or TensorParallelGroup(), nothing, pool, None, lora)


def answer_of(loading: AdapterLoading) -> AdapterLoaded:
    """Wait for the next answer."""
    while (answer := loading.take()) is None:
        select.select([loading.fd], [], [])
    return answer


def put(model: Model, place: int, adapter: MadeAdapter) -> AdapterLoaded:
    loading = AdapterLoading(model.adapters, 0)
    try:
        loading.start(LoadAdapter(place, adapter.message()))
        return answer_of(loading)
    finally:
        loading.close()


def adapted(folder: Path, adapters: Sequence[MadeAdapter], pool=None, group=None, **config) -> Model:
    """The model with `adapters` in the places 1, 2, ..."""
    model = load(folder, pool, group, LORA, **config)
    for place, adapter in enumerate(adapters, start=1):
        answer = put(model, place, adapter)
        assert not answer.error, answer.error
    return model


class _Stepped:
    """A model all of whose tokens have the adapter in one place, for drivers that know no adapters."""

    def __init__(self, model: Model, place: int):
        self._model = model
        self._place = place

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, batch, cache):
        self._model.adapters.step.tokens = self._groups(len(batch.token_ids))
        return self._model.forward(batch, cache)

    def logits(self, hidden):
        self._model.adapters.step.logits = self._groups(len(hidden))
        return self._model.logits(hidden)

    def _groups(self, count):
        table, most = adapter_groups(np.full(count, self._place, np.int32), count)
        return AdapterGroups(torch.from_numpy(table), most) if most else None


def step_of(model: Model, place: int) -> Model:
    """The model with the adapter in `place` for every token."""
    return _Stepped(model, place)

"""The models of random workloads; each is written and loaded once."""

from functools import cache, partial
from pathlib import Path

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL

from ...ranks import Ranks, SharedModel
from ...tiny_models.tiny_lfm2 import write_tiny_lfm2
from ...tiny_models.tiny_model import write_tiny_model
from .random_workload import CHECKPOINTS, EXPERTS, GROUPED, LATENT, MAX_MODEL_LEN, ModelChoice
from .variant_workload import write_variant

TINY = {**CHECKPOINTS, "grouped": GROUPED, "experts": EXPERTS, "latent": LATENT}


class Models:
    """Checkpoints are in the folder `home`; `isa` replaces the one of every choice."""

    def __init__(self, home: Path, isa: str | None = None):
        self._home = home
        self._isa = isa
        self._pools: list[cpu.Pool] = []
        self._groups: dict[int, Ranks] = {}
        self.load = cache(self._load)
        self._folder = cache(self._write)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        for pool in self._pools:
            pool.close()

    def _load(self, choice: ModelChoice) -> Model | SharedModel:
        load_on = partial(self._load_rank, choice, self._folder(choice.checkpoint))
        return load_on(TensorParallelGroup()) if choice.ranks == 1 else SharedModel(self._group(choice.ranks), load_on)

    def _load_rank(self, choice: ModelChoice, folder: str, group: TensorParallelGroup) -> Model:
        library = cpu.load_library(self._isa or choice.isa)
        pool = cpu.Pool(library, [-1] * choice.threads, summation=choice.summation)
        self._pools.append(pool)
        kinds = {"dtype": choice.dtype, "quantization": choice.quantization, "pooling": choice.pooling}
        config = ModelConfig(device="cpu", **kinds)
        return load_model(folder, config, group, lambda done, total: None, pool)

    def _write(self, checkpoint: str) -> str:
        if checkpoint == "demo":
            return str(DEMO_MODEL)
        home = self._home / checkpoint
        home.mkdir()
        if checkpoint == "states":
            return write_tiny_lfm2(home, max_position_embeddings=MAX_MODEL_LEN)
        if checkpoint in TINY:
            return write_tiny_model(home, max_position_embeddings=MAX_MODEL_LEN, **TINY[checkpoint])
        write_variant(checkpoint, home)
        return str(home)

    def _group(self, size: int) -> Ranks:
        if size not in self._groups:
            home = self._home / f"group-{size}"
            home.mkdir()
            self._groups[size] = Ranks(size, home / "rendezvous")
        return self._groups[size]

"""What one load of a model is given."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paged_serve.protocol.messages.config import ModelConfig

from ..distributed.tensor_parallel import TensorParallelGroup
from ..kernels.cpu.library import Pool
from ..layers.backend import Backend


@dataclass(frozen=True, slots=True)
class Load:
    """The arguments of one load."""

    folder: Path
    config: ModelConfig
    group: TensorParallelGroup
    on_progress: Callable[[int, int], None]
    pool: Pool | None
    backend: Backend

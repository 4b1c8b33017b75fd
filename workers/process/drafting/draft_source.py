"""What makes drafts beside the target, by the configuration: a draft model, a head, or neither."""

from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

from ...distributed.memory import free_host_bytes
from ...kernels.cpu.library import Pool
from ...layers.model import Model
from .draft_head import DraftHead
from .draft_model import DraftModel

DraftSource = DraftModel | DraftHead


def draft_source_of(
    config: Config, target_folder: str, target: Model, pool: Pool | None, rank: int
) -> DraftSource | None:
    """The draft model or head of `rank`; None: it has none. Raises ConfigError if the settings do not fit together."""
    wanted = config.speculation
    if wanted.needs_draft_model != bool(wanted.draft_model):
        raise ConfigError(
            f"speculation.method={wanted.method!r} and speculation.draft_model={wanted.draft_model!r} do not fit "
            "together: give --speculative draft:FOLDER or eagle3:FOLDER, or neither"
        )
    if not wanted.draft_model:
        return None
    if target.device != "cpu" or config.model.platform:
        raise ConfigError(
            f"speculation.method={wanted.method!r} is for models on the CPU, and this one is on "
            f"{config.model.platform or target.device}; use --speculative ngram"
        )
    if wanted.method == "eagle3" and (size := config.parallel.tensor_parallel_size) > 1:
        raise ConfigError(
            f"speculation.method='eagle3' is for a single rank, but tensor_parallel_size={size}; use "
            "--speculative suffix"
        )
    if rank:
        return None
    if wanted.method == "eagle3":
        return DraftHead.load(config, target, pool, free_host_bytes())
    return DraftModel.load(config, Path(target_folder), target.geometry, pool, free_host_bytes())

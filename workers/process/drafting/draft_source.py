"""What makes drafts for the target, by the configuration: a draft model, a head, or neither."""

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
            f"speculative={wanted.method!r} and draft_model={wanted.draft_model!r} do not fit "
            "together: give --speculative draft:FOLDER or eagle3:FOLDER, or another method and no folder"
        )
    if not wanted.computes_drafts:
        return None
    if target.device != "cpu" or config.model.platform:
        raise ConfigError(
            f"speculative={wanted.method!r} is for models on the CPU, and this one is on "
            f"{config.model.platform or target.device}; use --speculative ngram"
        )
    if rank:
        return None
    if wanted.method == "draft":
        return DraftModel.load(config, Path(target_folder), target.geometry, pool, free_host_bytes())
    return DraftHead.load(config, Path(target_folder), target, pool, free_host_bytes())

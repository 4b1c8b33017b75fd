"""The models in the Hugging Face cache ($HF_HUB_CACHE, $HF_HOME) that can be served."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

from ..config.words import hint

_UNITS = ("B", "kB", "MB", "GB", "TB")
_SPANS = ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A downloaded model; `folder` is that of its newest snapshot."""

    name: str
    folder: Path
    num_bytes: int
    used_at: float  # seconds since 1970
    revisions: tuple[str, ...]

    @property
    def architecture(self) -> str:
        if not any(self.folder.glob("*.safetensors")):
            return "GGUF"
        try:
            config = json.loads((self.folder / "config.json").read_bytes())
            return str(config.get("architectures", ["?"])[0])
        except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError):
            return "?"


def cached_models() -> list[CachedModel]:
    """The cached models with weights in a supported format, sorted by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = []
    for repo in found:
        revisions = sorted(repo.revisions, key=lambda revision: revision.last_modified)
        if repo.repo_type == "model" and revisions and _has_weights(Path(revisions[-1].snapshot_path)):
            hashes = tuple(revision.commit_hash for revision in revisions)
            folder = Path(revisions[-1].snapshot_path)
            models.append(CachedModel(repo.repo_id, folder, repo.size_on_disk, repo.last_accessed, hashes))
    return sorted(models, key=lambda model: model.name.lower())


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.rglob("*.gguf"))


def find(models: Sequence[CachedModel], name: str) -> CachedModel:
    """The model called `name`. Raises ConfigError when it is not in the cache."""
    for model in models:
        if model.name == name:
            return model
    known = hint(name, [model.name for model in models])
    raise ConfigError(f"{name} is not in the cache{known or '; `paged-serve ls` lists the cached models'}")


def remove(model: CachedModel) -> None:
    """Remove a model with all its revisions. Raises ConfigError when the files cannot be removed."""
    from huggingface_hub import scan_cache_dir

    try:
        scan_cache_dir().delete_revisions(*model.revisions).execute()
    except OSError as error:
        raise ConfigError(f"{model.name} cannot be removed: {error}") from None
    if model.folder.exists():
        raise ConfigError(f"{model.name} was not removed; is {model.folder} writable?")


def size_text(num_bytes: float) -> str:
    for unit in _UNITS[:-1]:
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} {_UNITS[-1]}"


def age_text(moment: float) -> str:
    elapsed = max(0.0, time.time() - moment)
    for seconds, name in _SPANS:
        if elapsed >= seconds:
            count = int(elapsed // seconds)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "now"

"""A draft model for the target: on rank 0, on the same threads, with a KV cache of its own."""

import json
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, SchedulerConfig

from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.geometry import Geometry
from ...kernels.cpu.library import Pool
from ...kv.budget import max_model_len
from ...kv.kv_cache import KVCache
from ...layers.model import Model
from ...models.loading import load_model
from ...runner.host_runner import host_runner
from ...speculation.model_drafters.model_drafter import ModelDrafter
from ..warm_up import NUM_TOKENS, warm_up

SHARE_OF_FREE_MEMORY = 0.05  # of the host's, for keys and values of drafts; those of rows that do not fit are dropped


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel:
    """The loaded model, and the size of its cache."""

    model: Model
    max_len: int  # tokens of a row
    num_blocks: int
    block_size: int
    cache_bytes: int

    @classmethod
    def load(
        cls, config: Config, target_folder: Path, target: Geometry, pool: Pool | None, free_bytes: int
    ) -> "DraftModel":
        """Load the configured model. `free_bytes` are free before that, for its weights and its cache.

        Raises ConfigError, with the setting's name, if the folder is missing, or the model cannot draft for `target`.
        """
        folder = Path(config.speculation.draft_model)
        named = f"draft_model={folder}"
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{named}: there is no {folder.absolute() / 'config.json'}; give a local model folder")
        own = structs.replace(config.model, model=str(folder), tokenizer="", max_model_len=None, pooling="auto")
        try:
            model = load_model(str(folder), own, TensorParallelGroup(), lambda done, total: None, pool)
        except ConfigError as error:
            raise ConfigError(f"{named}: {error}") from error
        _check(named, model, target)
        _check_tokenizers(named, Path(config.model.tokenizer or target_folder), folder)
        max_len = min(max_model_len(config, target), model.geometry.max_position_embeddings)
        blocks = draft_blocks(config, named, model.geometry, max_len, free_bytes - model.weights_bytes)
        return cls(model, max_len, *blocks)

    def drafter(self, scheduler: SchedulerConfig) -> ModelDrafter:
        """Allocate the cache. Raises ConfigError if memory is short."""
        cache = KVCache.allocate(self.model.geometry, self.num_blocks, self.block_size)
        alone = structs.replace(scheduler, pipeline_depth=1)
        runner = host_runner(self.model, cache, TensorParallelGroup(), alone, self.max_len)
        if self.max_len >= NUM_TOKENS:
            warm_up(runner.execute, self.max_len)
        sizes = self.num_blocks, self.block_size, self.max_len
        return ModelDrafter(runner.execute, *sizes, max_tokens=scheduler.max_num_batched_tokens)


def draft_blocks(config: Config, named: str, geometry: Geometry, max_len: int, free_bytes: int) -> tuple[int, int, int]:
    """The number of blocks, their size in tokens, and the bytes of all: for the keys and values of drafts.

    Raises ConfigError if they do not hold one sequence of `max_len` tokens.
    """
    block_size = config.cache.block_size
    of_block = geometry.kv_bytes_per_block(block_size, 1, geometry.dtype, geometry.num_layers)
    of_row = -(-max_len // block_size)
    budget = int(free_bytes * SHARE_OF_FREE_MEMORY)
    num_blocks = min(config.scheduler.max_num_seqs * of_row, budget // of_block)
    if num_blocks < of_row:
        raise ConfigError(
            f"{named}: {max(0, budget)} bytes hold {max(0, num_blocks)} blocks of {of_block} bytes of its keys and "
            f"values, but a sequence of {max_len} tokens needs {of_row}; lower max_model_len or use a smaller model"
        )
    return num_blocks, block_size, num_blocks * of_block


def _check(named: str, model: Model, target: Geometry) -> None:
    geometry = model.geometry
    if not geometry.has_one_head_size or geometry.kv_sources:
        raise ConfigError(f"{named}: a model whose layers differ in their heads cannot draft; choose another model")
    if "generate" not in model.pooling.spec.tasks:
        raise ConfigError(f"{named}: the model generates no tokens, so it cannot draft; give another")
    if geometry.state_bytes(1):
        raise ConfigError(
            f"{named}: the model has recurrent layers, whose states cannot be undone after a rejected draft; give a "
            "model with attention alone"
        )
    if geometry.vocab_size != target.vocab_size:
        raise ConfigError(
            f"{named}: its vocabulary has {geometry.vocab_size} tokens, the model's {target.vocab_size}; give a draft "
            "model of the same family"
        )


def _check_tokenizers(named: str, target: Path, folder: Path) -> None:
    """Drafts of another vocabulary of the same size would all be wrong."""
    files = [each / "tokenizer.json" for each in (target, folder)]
    if not all(each.is_file() for each in files):
        return
    texts = [each.read_bytes() for each in files]
    if texts[0] != texts[1] and _vocabulary(texts[0]) != _vocabulary(texts[1]):
        raise ConfigError(f"{named}: its tokenizer.json has another vocabulary than {files[0]}; give another model")


def _vocabulary(text: bytes) -> object:
    return json.loads(text).get("model", {}).get("vocab")

"""Drafts of a model: its greedy continuation of each row, whatever happened to the rows before; and what it refuses."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, SchedulerConfig, SpeculationConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.drafting.draft_model import DraftModel
from paged_serve.workers.process.drafting.draft_source import draft_source_of
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.speculation.drafter import DraftRequest
from paged_serve.workers.speculation.model_drafters.model_drafter import ModelDrafter

from ..tiny_models.checkpoints import write_checkpoint
from ..tiny_models.tiny_lfm2 import write_tiny_lfm2
from ..tiny_models.tiny_model import write_tiny_model
from .workloads import Bench, played_alike

MAX_LEN, BLOCK_SIZE, NUM_ROWS = 96, 16, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def pool(make_pool):
    return make_pool()


@pytest.fixture(scope="module")
def model(folder, pool):
    return load_model(folder, ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, total: None, pool)


def drafter_for(model, num_blocks=NUM_ROWS * MAX_LEN // BLOCK_SIZE, max_len=MAX_LEN, max_tokens=4096):
    cache = KVCache.allocate(model.geometry, num_blocks, BLOCK_SIZE)
    scheduler = SchedulerConfig(max_num_seqs=NUM_ROWS, pipeline_depth=1)
    runner = host_runner(model, cache, TensorParallelGroup(), scheduler, max_len)
    return ModelDrafter(runner.execute, num_blocks, BLOCK_SIZE, max_len, max_tokens)


def requests_of(texts, most):
    return [DraftRequest(row, np.array(text, np.int32), most) for row, text in texts.items()]


def changed(rng, text, vocab_size):
    """The text of the row in a later step: longer, of a rejected draft, or of another request."""
    more = [rng.randrange(vocab_size) for _ in range(rng.choice((1, 1, 3, 20)))]
    kept = rng.choice((len(text), len(text), max(1, len(text) - rng.randint(1, 6)), 0))
    return [*text[:kept], *more][:MAX_LEN]


@pytest.mark.parametrize(
    "limits", [{}, {"num_blocks": 6}, {"max_tokens": 24}], ids=["all", "few blocks", "short steps"]
)
def test_drafts_are_the_greedy_continuation_whatever_the_rows_had_before(model, limits):
    rng, vocab_size = random.Random(1), model.geometry.vocab_size
    drafter, oracle, texts = drafter_for(model, **limits), drafter_for(model, max_tokens=4096), dict[int, list[int]]()
    num_drafts = num_without = 0
    for _ in range(25):
        for row in rng.sample(range(NUM_ROWS), 3):
            texts[row] = changed(rng, texts.get(row, []), vocab_size)
        chosen = {row: text for row, text in texts.items() if rng.random() < 0.7}
        requests = requests_of(chosen, rng.choice((1, 3, 6)))
        oracle._blocks.rows.clear()
        oracle._blocks.free = list(range(NUM_ROWS * MAX_LEN // BLOCK_SIZE))
        for made, right in zip(drafter.draft(requests), oracle.draft(requests), strict=True):
            assert len(made) in (0, len(right))
            assert made.tolist() == right[: len(made)].tolist()
            num_drafts += len(made)
            num_without += len(right) > len(made)
    assert num_drafts > 50
    assert bool(num_without) == bool(limits), "a limit has an effect"
    held = [block for row in drafter._blocks.rows.values() for block in row.blocks]
    assert sorted(held + drafter._blocks.free) == list(range(len(held) + len(drafter._blocks.free)))


def test_a_full_row_has_no_drafts(model):
    texts = {0: list(range(3, 3 + MAX_LEN)), 1: list(range(3, MAX_LEN))}
    assert [len(made) for made in drafter_for(model).draft(requests_of(texts, 8))] == [0, 3]


def test_a_planted_cache_of_rejected_drafts_is_detected(model, monkeypatch):
    monkeypatch.setattr(
        "paged_serve.workers.speculation.model_drafters.model_drafter._agreement", lambda one, other: len(one)
    )
    with pytest.raises(AssertionError):
        test_drafts_are_the_greedy_continuation_whatever_the_rows_had_before(model, {})


@pytest.mark.parametrize("seed", [0, 2])
def test_a_model_that_drafts_for_itself_changes_no_byte(model, seed):
    drafter = drafter_for(model, num_blocks=NUM_ROWS * 16, max_len=256)
    assert played_alike(Bench(model), seed, drafter).drafts["accepted"] > 0


def config_for(folder, **changes):
    return Config(
        model=ModelConfig(model=str(folder), device="cpu"),
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=SchedulerConfig(max_num_seqs=NUM_ROWS),
        speculation=SpeculationConfig(**{"method": "draft", "draft_model": str(folder)} | changes),
    )


def test_the_model_of_the_configuration_drafts(model, folder, pool):
    draft_model = draft_source_of(config_for(folder), folder, model, pool, rank=0)
    assert draft_source_of(config_for(folder), folder, model, pool, rank=1) is None
    made = draft_model.drafter(SchedulerConfig(max_num_seqs=NUM_ROWS)).draft(requests_of({0: [5, 6, 7]}, 4))
    assert made[0].tolist() == drafter_for(model).draft(requests_of({0: [5, 6, 7]}, 4))[0].tolist()


def write_tokenizer(folder, vocabulary):
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))


def test_what_cannot_draft_is_refused_by_name(model, folder, pool, tmp_path):
    def refused(match, **changes):
        with pytest.raises(ConfigError, match=match):
            draft_source_of(config_for(folder, **changes), folder, model, pool, rank=0)

    refused("draft_model='' do not fit together", draft_model="")
    refused("speculative='ngram' and .* do not fit together", method="ngram")
    refused("draft_model=/nowhere: there is no /nowhere/config.json", draft_model="/nowhere")
    for name in ("vocabulary", "states", "words"):
        (tmp_path / name).mkdir()
    refused(
        "its vocabulary has 280 tokens, the model's 300",
        draft_model=write_tiny_model(tmp_path / "vocabulary", vocab_size=280),
    )
    refused("has recurrent layers", draft_model=write_tiny_lfm2(tmp_path / "states"))
    write_checkpoint("gemma4", tmp_path / "heads")
    refused("whose layers differ in their heads", draft_model=str(tmp_path / "heads"))
    words = write_tiny_model(tmp_path / "words")
    write_tokenizer(tmp_path / "words", {"a": 0})
    own = structs.replace(config_for(words).model, tokenizer=str(tmp_path))
    write_tokenizer(tmp_path, {"b": 0})
    with pytest.raises(ConfigError, match=r"its tokenizer\.json has another vocabulary than"):
        draft_source_of(structs.replace(config_for(words), model=own), words, model, pool, rank=0)
    with pytest.raises(ConfigError, match="lower max_model_len or use a smaller model"):
        DraftModel.load(config_for(folder), Path(folder), model.geometry, pool, free_bytes=1000)

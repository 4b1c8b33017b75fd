"""The facts that a rank of a pooling model reports, and its first steps."""

import pytest

from paged_serve.protocol.messages.config import Config, ModelConfig, ParallelConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.process.rank import Rank

from ..tiny_models.tiny_model import write_tiny_model
from .kinds_of_encoders import ENCODERS
from .references import write_reference

REPORTED = (
    "tasks",
    "embedding_size",
    "num_labels",
    "needs_whole_prompt",
    "is_bidirectional",
    "matryoshka_dimensions",
    "max_model_len",
)
KINDS = {
    "text": ({}, (("generate", "embed", "token_embed"), 64, 0, False, False, (), 256)),
    "mean": ({"pooling": "mean"}, (("generate", "embed", "token_embed"), 64, 0, True, False, (), 256)),
    "BertModel": ({}, (("embed", "token_embed"), 64, 0, True, True, (), 256)),
    "BertForSequenceClassification": ({}, (("classify",), 0, 3, True, True, (), 256)),
    "Qwen2ForSequenceClassification": ({}, (("classify",), 0, 3, False, False, (), 512)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_reports_its_vectors_and_runs_first_steps(kind, tmp_path):
    options, expected = KINDS[kind]
    if kind in ("text", "mean"):
        write_tiny_model(tmp_path)
    else:
        own = ENCODERS["BertModel"] if kind.startswith("Bert") else {}
        write_reference(tmp_path, kind, own | ({} if kind == "BertModel" else {"num_labels": 3}))
    config = Config(
        model=ModelConfig(model=str(tmp_path), device="cpu", **options),
        parallel=ParallelConfig(threads_per_rank=1, pin_threads="never"),
    )
    rank = Rank.load(config, 0, str(tmp_path / "rendezvous"), lambda done, total: None)
    ready = rank.ready()
    assert tuple(getattr(ready, name) for name in REPORTED) == expected
    rank.create_kv_cache(32, lambda done, total: None)
    task = "classify" if "classify" in ready.tasks else "embed"
    row = NewRow(0, pack_ids([5, 6, 7]), 3, 0, (pack_ids([1]),), 0, (), SamplingParams(), PoolingParams(task))
    output = rank.steps.execute(SchedulerOutput(1, 1, new_rows=(row,), chunks=(Chunk(0, 3),)))
    assert output.token_ids == b""
    [answer] = output.pooled
    assert answer.pooled is not None
    assert (answer.row, answer.pooled.rows, answer.pooled.columns) == (0, 1, ready.embedding_size or ready.num_labels)

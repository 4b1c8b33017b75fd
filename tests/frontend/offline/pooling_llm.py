"""A pooling model for LLM over a fake engine: its folder, its requests, and its expected vectors."""

import json
import struct
from pathlib import Path

from tokenizers import Tokenizer, processors

from paged_serve import PoolingParams
from paged_serve.frontend.offline import local_engine
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import unpack_ids

from ..fake_core import POOLING, pool, vector
from ..fake_supervisor import FakeSupervisor, write_model_of_numbers
from .running_llm import core_of

PROMPTS = [f"{i + 1} {2 * i} 5" for i in range(60)]
EMBEDS = ("embed", "token_embed")


def pooling_models(tmp_path_factory):
    """The folder of a model whose tokens are numbers. [CLS] is 998 and [SEP] 999; a pair's texts have types."""
    folder = Path(write_model_of_numbers(tmp_path_factory.mktemp("model")))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        "Ġ998 $A Ġ999", "Ġ998 $A Ġ999 $B:1 Ġ999:1", [("Ġ998", 998), ("Ġ999", 999)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"type_vocab_size": 2}))
    prompts = {"prompts": {"query": "77 "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return str(folder)


def scripted_supervisors(monkeypatch):
    """A function supervisor(script, limits) that lets LLM start an engine that follows the script."""
    monkeypatch.setattr(local_engine, "Supervisor", FakeSupervisor)

    def supervisor(script=pool, **limits):
        monkeypatch.setattr(FakeSupervisor, "script", staticmethod(script))
        monkeypatch.setattr(FakeSupervisor, "limits", POOLING | limits)

    return supervisor


def sent(llm):
    return [unpack_ids(request.prompt_token_ids).tolist() for request in core_of(llm).all(EngineCoreRequest)]


def numbers(tokens, limits=POOLING, **params):
    pooled = vector(tokens, PoolingParams(**params), limits)
    return list(struct.unpack(f"<{len(pooled.values) // 4}f", pooled.values))


def flat(rows):
    return [number for row in rows for number in row]


def ids(text):
    return [998, *map(int, text.split()), 999]

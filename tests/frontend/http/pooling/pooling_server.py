"""Servers of pooling models over the fake engine, and their expected vectors."""

import base64
import json
import struct
from pathlib import Path

import msgspec
from tokenizers import Tokenizer, processors

from paged_serve.protocol.messages.pooling_params import PoolingParams

from ...fake_core import vector
from ...fake_engine import POOLING_LIMITS
from ...http_server import Server

EMBEDS = ("embed", "token_embed")
CLASSIFIES = ("classify", "token_classify")


def pooling_server(folder: Path, tasks: tuple[str, ...] = EMBEDS, num_labels: int = 3, **options: object) -> Server:
    limits = msgspec.structs.replace(POOLING_LIMITS, tasks=tasks, num_labels=num_labels)
    return Server(folder, limits=limits, options=options)


def numbers(server: Server, tokens: list[int], **params: object) -> list[float]:
    """The vector of the fake model."""
    limits = server.engine.limits
    size = {"embedding_size": limits.embedding_size, "num_labels": limits.num_labels}
    pooled = vector(tokens, PoolingParams(**params), size)
    return list(struct.unpack(f"<{pooled.rows * pooled.columns}f", pooled.values))


def decoded(text: str) -> list[float]:
    """Decode base64 of little-endian float32."""
    raw = base64.b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def bert_folder(source: Path, folder: Path, **files: dict) -> Path:
    """A model whose tokenizer puts [CLS] and [SEP] around texts and pairs; `files`: JSON by file name without .json."""
    folder.mkdir(exist_ok=True)
    for each in source.iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", cls), ("[SEP]", sep)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in ({"config": {"type_vocab_size": 2}} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder

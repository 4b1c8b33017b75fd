"""Files of blocks that are changed after their conversion: refused in one line, or read as the package reads them."""

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from paged_serve.frontend.gguf.folder import make_folder
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import read_gguf
from paged_serve.workers.checkpoint.blocks.block_weight import PRODUCT_FORMATS, BlockWeight
from paged_serve.workers.checkpoint.conversion import NotFiniteError
from paged_serve.workers.checkpoint.gguf.gguf_checkpoint import GgufCheckpoint
from paged_serve.workers.checkpoint.matrix_reader import FloatReader, MatrixPart
from paged_serve.workers.kernels.cpu.gemm import embed_rows
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.kernels.cpu.loading import packed_blocks
from paged_serve.workers.quantization.gguf import GgufTableReader

from ...gguf_files import Type, write_gguf
from ..tiny_models.checkpoints import ours
from .models import write_model

TYPES = [Type[name] for name in PRODUCT_FORMATS]
TENSORS = {  # the name of some tensors in the file, and in a folder
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    "blk.1.ffn_up": "model.layers.1.mlp.up_proj",
    "blk.1.attn_v": "model.layers.1.self_attn.v_proj",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
}
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(3600)]
# Mutations, and what chooses the types of a file's tensors: those of the four nightly files have all grids among them.
RUNS = [(30, 2), *(pytest.param(3000, first, marks=NIGHTLY) for first in (1, 2, 3, 4))]


def kind_of(name: str, first: int) -> Type:
    return TYPES[(first + sum(name.encode())) % len(TYPES)]


def mutated(data: bytes, rng: random.Random, ends: list[int]) -> bytes:
    """A few bytes changed, in the header, in scales and codes, or the file cut."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        part = rng.choice((0, 1, 1))
        at = rng.randrange(ends[part], ends[part + 1])
        changed[at] = rng.choice((0, 1, 0x7C, 0x7F, 0xFF, rng.randrange(256)))
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.05 else changed)


def values_match(made: Path, file: Path, stored: str, shape: tuple[int, int], pool: Pool) -> bool:
    """Whether a table of the file's tensor of `shape` has the values that the gguf package dequantizes."""
    checkpoint = GgufCheckpoint(made, torch.bfloat16)
    reader = GgufTableReader(checkpoint, FloatReader(checkpoint, torch.bfloat16))
    weight = reader.read(TENSORS[stored], MatrixPart(shape, 0, 0, shape[0]))
    tensor = read_gguf(file).tensors[f"{stored}.weight"]
    raw = np.frombuffer(file.read_bytes()[tensor.start : tensor.start + tensor.num_bytes], dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(gguf.dequantize(raw.reshape(shape[0], -1), Type[tensor.format.name]).copy())
    assert isinstance(weight, BlockWeight) == (tensor.format.name in PRODUCT_FORMATS)
    if not isinstance(weight, BlockWeight):
        return torch.equal(weight.tensor(), expected.bfloat16())
    table = packed_blocks(pool, weight)
    return torch.equal(embed_rows(pool, torch.arange(shape[0]), table, torch.float32), expected)


@pytest.mark.parametrize(("count", "first"), RUNS)
def test_a_mutated_file_is_refused_in_one_line_or_has_the_values_of_the_package(count, first, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    folder, file = write_model("wide", tmp_path / "folder", torch.bfloat16), tmp_path / "model.gguf"
    made = make_folder(write_gguf(folder, file, lambda name, tensor: kind_of(name, first)), tmp_path / "made")
    data, rng = file.read_bytes(), random.Random(count)
    shapes = {name: read_gguf(file).tensors[f"{name}.weight"].shape for name in TENSORS}
    ends = [0, min(tensor.start for tensor in read_gguf(file).tensors.values()), len(data)]
    refusals, num_loaded = [], 0
    for index in range(count):
        file.write_bytes(mutated(data, rng, ends))
        try:
            if index % 10 == 0:
                ours(made, pool=pool)
            stored = rng.choice(list(TENSORS))
            assert values_match(made, file, stored, shapes[stored], pool), index
        except (ConfigError, NotFiniteError) as refusal:
            refusals.append(str(refusal))
        else:
            num_loaded += 1
    assert not any("\n" in refusal for refusal in refusals)
    assert min(len(refusals), num_loaded) > count / 20

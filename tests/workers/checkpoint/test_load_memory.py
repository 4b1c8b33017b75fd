"""Loading takes little more memory than the loaded weights, so a model nearly as large as the memory can be loaded."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from ..tiny_models.tiny_model import write_tiny_model

HIDDEN, FFN, LAYERS = 512, 2048, 24
SLACK_BYTES = 28 << 20  # the matrices of one layer during conversion, and Python's own memory

LOAD = """
import json, sys
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.allocator import keep_freed_memory
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.distributed.memory import peak_resident_bytes, resident_bytes
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
import torch

torch.set_num_threads(1)
keep_freed_memory()
library = cpu.best_library()
pool = cpu.Pool(library, [-1]) if library else None

def load(folder, kind):
    config = ModelConfig(device="cpu", quantization=kind)
    return load_model(folder, config, TensorParallelGroup(), lambda done, total: None, pool)

load(sys.argv[2], sys.argv[3])  # so that memory for the first use of each library is not counted
before = resident_bytes()
model = load(sys.argv[1], sys.argv[3])
print(json.dumps([model.weights_bytes, peak_resident_bytes() - before]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A Llama model with 200 MB of zeros as weights."""
    folder = tmp_path_factory.mktemp("large")
    write_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    shape = {"hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "head_dim": HIDDEN // 4}
    (folder / "config.json").write_text(json.dumps(config | shape | {"num_key_value_heads": 4}))
    norms = ["model.norm", *(f"model.layers.{n}.input_layernorm" for n in range(LAYERS))]
    norms += [f"model.layers.{n}.post_attention_layernorm" for n in range(LAYERS)]
    shapes = {f"{norm}.weight": (HIDDEN,) for norm in norms}
    shapes |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (config["vocab_size"], HIDDEN))
    for n in range(LAYERS):
        shapes |= {f"model.layers.{n}.self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"model.layers.{n}.mlp.{part}_proj.weight": (FFN, HIDDEN) for part in ("gate", "up")}
        shapes[f"model.layers.{n}.mlp.down_proj.weight"] = (HIDDEN, FFN)
    save_file({name: torch.ones(shape).bfloat16() for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "kind", ["auto", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("int8", "int4"))]
)
def test_the_peak_while_loading_is_little_more_than_the_weights(kind, large, tmp_path):
    write_tiny_model(tmp_path)
    arguments = [sys.executable, "-c", LOAD, str(large), str(tmp_path), kind]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=True)
    weights, peak = json.loads(done.stdout)
    assert weights > (50 << 20)
    assert peak < 1.15 * weights + SLACK_BYTES, f"{peak} bytes to load {weights}"

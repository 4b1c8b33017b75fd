"""Golden logprobs: the outputs of models, bit for bit, on every processor. `just golden` writes them again.

Weights and prompts are derived from integers, so that outputs depend only on the server's own arithmetic.
"""

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL

from ..invariance.workloads.random_workload import CHECKPOINTS, MAX_MODEL_LEN
from ..invariance.workloads.test_random_workloads import alone
from ..one_process import Received
from ..portable_numbers import integers, normals
from ..tiny_models.tiny_model import VOCAB_SIZE, write_tiny_model

FOLDER = Path(__file__).parent / "golden"
MODELS: dict[str, tuple[str, Any, Any]] = {  # checkpoint, quantization, dtype
    **{f"{checkpoint} bf16": (checkpoint, "auto", "auto") for checkpoint in ("llama", "mistral", "qwen3", "demo")},
    **{f"{checkpoint} fp16": (checkpoint, "auto", "float16") for checkpoint in ("llama", "qwen3", "demo")},
    **{f"{name} {form}": (name, form, "auto") for name in ("llama", "demo") for form in ("int8", "int4")},
    **{f"llama {form} fp16": ("llama", form, "float16") for form in ("int8", "int4")},
    "llama fp32": ("llama-float32", "auto", "auto"),
}
# By order of summation; products of int8 and of float32 have the same bits in both, and so has attention in float16.
RECORDED: dict[cpu.Summation, list[str]] = {
    "dot": list(MODELS),
    "tile": [name for name in MODELS if name not in ("llama int8 fp16", "llama fp32")],
}
PROMPT_TOKENS = (1, 40, 77, 1040)  # 1040: more than one range of attention
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 1},
    {"temperature": 0.9, "seed": 7, "top_p": 0.95, "logprobs": 0},
    {"temperature": 1.3, "seed": 8, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2, "logprobs": 2},
    {"temperature": 1.0, "seed": 9, "frequency_penalty": 0.5, "presence_penalty": 0.25, "logprobs": 1},
)


def requests() -> list[EngineCoreRequest]:
    return [
        EngineCoreRequest(
            request_id=100 * index,
            prompt_token_ids=pack_ids(integers(3, VOCAB_SIZE, (length,), index).tolist()),
            sampling_params=SamplingParams(max_tokens=12, ignore_eos=True, **sampling),
        )
        for index, (length, sampling) in enumerate(zip(PROMPT_TOKENS, SAMPLING, strict=True))
    ]


def outputs_of(isa: str, name: str, home: Path, order: cpu.Summation) -> list[dict[str, Any]]:
    """The output of a model, made in `home`, for each request on one instruction set in one order of summation."""
    checkpoint, quantization, dtype = MODELS[name]
    folder = str(DEMO_MODEL)
    if checkpoint != "demo":
        changes = {"max_position_embeddings": MAX_MODEL_LEN} | CHECKPOINTS[checkpoint]
        seeds = itertools.count()
        folder = write_tiny_model(home, draw=lambda shape: normals(shape, next(seeds)), **changes)
    pool = cpu.Pool(cpu.load_library(isa), [-1], summation=order)
    try:
        config = ModelConfig(device="cpu", quantization=quantization, dtype=dtype)
        model = load_model(folder, config, TensorParallelGroup(), lambda done, total: None, pool)
        asked = requests()[: 3 if checkpoint == "demo" else 4]  # only a tiny model is fast with a long prompt
        return [_as_json(alone(model, request)[request.request_id]) for request in asked]
    finally:
        pool.close()


def _as_json(received: Received) -> dict[str, Any]:
    """The output as JSON; logprobs are the bits of float32, little-endian."""
    prompt = received.prompt_logprobs
    return {
        "token_ids": received.token_ids,
        "logprobs": received.logprobs[1].hex(),
        "prompt_logprobs": "" if prompt is None else prompt.logprobs.hex(),
    }


def file_of(order: cpu.Summation) -> Path:
    return FOLDER / f"{order}.json"


def recorded(order: cpu.Summation) -> dict[str, Any]:
    """The recorded results of `outputs_of`, by model."""
    found: dict[str, Any] = json.loads(file_of(order).read_text())
    return found


def write() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for order, names in RECORDED.items():
        found = {}
        for name in names:
            with tempfile.TemporaryDirectory() as home:
                found[name] = outputs_of("portable", name, Path(home), order)
        file_of(order).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write()

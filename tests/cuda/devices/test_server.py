"""A whole server with two ranks on emulated CUDA devices: processes, start, graphs, plans, a lost worker."""

import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.frontend.config.model_folder import demo_model_folder

from ...end_to_end.server_process import ServerProcess
from ...workers.tiny_models.tiny_model import HIDDEN, write_tiny_model

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

MODULES = Path(__file__).parent / "emulated_modules"
OPTIONS = (
    "--no-standby-workers",
    "--served-model-name",
    "demo",
    "--device",
    "cpu",
    "--cpu-isa",
    "torch",
    "--max-num-seqs",
    "4",
    "--max-num-batched-tokens",
    "32",
)
REQUESTS = [
    {"prompt": "Once upon a time", "temperature": 0.0, "max_tokens": 4},
    {"prompt": "Water boils", "temperature": 0.9, "seed": 3, "max_tokens": 3},
    {
        "prompt": "The capital of France is Paris. The capital of Japan is",
        "temperature": 1.0,
        "seed": 5,
        "max_tokens": 5,
    },
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny model with the demo model's tokenizer.

    In row-parallel products each output depends on one input, so that its sum is exact for any number of ranks.
    """
    folder, demo = tmp_path_factory.mktemp("tiny"), demo_model_folder()
    vocabulary = json.loads((demo / "config.json").read_text())["vocab_size"]
    write_tiny_model(folder, vocab_size=vocabulary, eos_token_id=0)
    generator = torch.Generator().manual_seed(1)
    tensors = load_file(folder / "model.safetensors")
    for name, scale in (("model.embed_tokens.weight", 1.0), ("lm_head.weight", 0.4)):
        tensors[name] = (torch.randn(vocabulary, HIDDEN, generator=generator) * scale).bfloat16()
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            chosen = torch.randint(tensor.shape[1], (tensor.shape[0], 1), generator=generator)
            tensors[name] = torch.zeros_like(tensor).scatter_(1, chosen, 1.0)
    save_file(tensors, folder / "model.safetensors")
    for path in demo.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture
def serve(tmp_path_factory, folder):
    servers = []

    def start(*options):
        servers.append(
            ServerProcess(tmp_path_factory.mktemp("run"), str(folder), *OPTIONS, *options, import_path=MODULES)
        )
        servers[-1].wait_ready()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def answers(server):
    """The answers to all requests, sent one after another."""
    return [server.complete(**request) for request in REQUESTS]


def test_two_emulated_ranks_give_each_request_the_same_bytes_in_any_batch(serve, folder):
    server = serve("--tp", "2")
    alone = answers(server)
    with ThreadPoolExecutor(len(REQUESTS)) as clients:
        together = list(clients.map(lambda request: server.complete(**request), REQUESTS))
    assert together == alone
    assert len(set(alone)) == len(alone)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


@pytest.mark.nightly
def test_ranks_with_exact_sums_give_the_bytes_of_one_rank_even_after_a_loss(serve):
    server, expected = serve("--tp", "2"), answers(serve())
    assert answers(server) == expected
    server.children()["worker"].kill()
    assert server.complete_when_ready(**REQUESTS[0]) == expected[0]
    assert answers(server) == expected

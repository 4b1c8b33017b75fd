"""A start that cannot work is refused in one clear message, with exit code 2 and nothing left behind."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ..serving import ROOT

DEMO = ROOT / "paged_serve" / "demo_model"


def start(*options: str) -> tuple[int, str]:
    """(exit code, all output)."""
    command = [sys.executable, "-m", "paged_serve", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the demo model, to be damaged."""
    return Path(shutil.copytree(DEMO, tmp_path / "model"))


def edit_config(model: Path, **fields: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refused(output: tuple[int, str], *named: str) -> None:
    code, text = output
    assert code == 2, text
    assert "Traceback" not in text, text
    for word in named:
        assert word in text, text


def test_a_missing_model_is_refused(tmp_path):
    refused(start(str(tmp_path / "nowhere"), "--port", "0"), "nowhere")


def test_an_unsupported_architecture_is_refused(model):
    edit_config(model, architectures=["ZambaForCausalLM"], model_type="zamba")
    natively = start(str(model), "--port", "0", "--model-impl", "native")
    refused(natively, "ZambaForCausalLM is not supported", "LlamaForCausalLM", "Qwen3ForCausalLM")


@pytest.mark.nightly  # test_transformers_refusals.py has its messages
def test_an_architecture_that_transformers_does_not_run_here_is_refused(model):
    edit_config(model, architectures=["ZambaForCausalLM"], model_type="zamba")
    words = ("ZambaForCausalLM", "mamba_d_state=", "recurrent", "nearest", "MambaForCausalLM")
    refused(start(str(model), "--port", "0"), *words)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ ('a' * 10**10)|length }}", "more than 512 MiB"),
        # test_template_renderer.py has these two.
        pytest.param("{{ 9**(9**9) }}", "more than 1 s of processor time", marks=pytest.mark.nightly),
        pytest.param("{{ 1 * (10**9999) }}", "does not compile", marks=pytest.mark.nightly),
    ],
)
def test_a_chat_template_that_computes_when_compiled_is_refused(model, source, words):
    (model / "chat_template.jinja").write_text(source)
    refused(start(str(model), "--port", "0"), "chat template", words)


@pytest.mark.nightly  # test_tokenizer_growth.py has its message, and the test above a frontend's refusal
def test_a_tokenizer_that_expands_a_line_to_terabytes_is_refused(model):
    path = model / "tokenizer.json"
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    nested = {"type": "Sequence", "normalizers": [grows] * 4}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": nested}))
    refused(start(str(model), "--port", "0"), "normalizer", "times as long")


@pytest.mark.nightly  # test_refused_configs.py has its message
def test_ranks_that_do_not_divide_the_heads_are_refused(model):
    edit_config(model, num_attention_heads=3, num_key_value_heads=3)
    refused(start(str(model), "--tp", "2", "--port", "0"), "2", "attention heads, 3")


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a CUDA device here")
def test_a_missing_device_is_refused_in_one_line():
    code, text = start("--device", "cuda", "--port", "0")
    refused((code, text), "cuda")
    assert text.splitlines()[-1].startswith("paged-serve: ")


@pytest.mark.nightly  # test_rank.py has its message
def test_a_memory_share_of_an_unused_device_is_refused():
    refused(start("--device", "cpu", "--gpu-memory-utilization", "0.5", "--port", "0"), "0.5", "kv_cache_memory_bytes")


def test_a_port_in_use_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(start("--port", str(port)), str(port), "--port")


@pytest.mark.nightly  # test_weights.py has its message
def test_truncated_weights_are_refused(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    refused(start(str(model), "--port", "0"), "model.safetensors")


def test_a_deeply_nested_configuration_is_refused(model):
    (model / "config.json").write_text('{"x":' + 100_000 * "[" + 100_000 * "]" + "}")
    refused(start(str(model), "--port", "0"), "config.json", "nested too deeply")


@pytest.mark.nightly  # test_weights.py has its message
def test_nan_weights_are_refused(model):
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 4] = float("nan")
    save_file(tensors, weights)
    refused(start(str(model), "--port", "0"), name, "NaN")


def test_a_public_address_without_a_key_is_refused():
    refused(start("--host", "0.0.0.0", "--port", "0"), "--api-key")


def test_an_unknown_option_is_refused():
    code, text = start("--temprature", "1")
    assert code == 2
    assert "--temprature" in text


@pytest.mark.nightly  # test_kv_group.py has its message, and test_supervisor.py a core's refusal
def test_a_cache_too_small_for_the_requested_context_is_refused():
    refused(start("--num-blocks", "9", "--max-model-len", "500", "--port", "0"), "500", "32", "9", "144")

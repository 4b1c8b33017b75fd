"""Client libraries in their newest versions against a real server, each in a separate environment.

One program per library: questions, streams, structured outputs, forced calls, and conversations that the library sends
back.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..end_to_end.serving import Server, serving

FOLDER = Path(__file__).parent
PYTHON_LIBRARIES = {
    "instructor": ["instructor"],
    "langchain": ["langchain-openai"],
    "langchain_embeddings": ["langchain-openai", "numpy"],  # which its vector store needs
    "litellm": ["litellm", "mcp"],
    "llama_index": ["llama-index-llms-openai-like"],
    "llama_index_embeddings": ["llama-index-embeddings-openai-like"],
    "lm_eval": ["lm-eval[api]", "pydantic"],  # which questions.py needs
    "openai_agents": ["openai-agents"],
    "outlines": ["outlines", "openai"],
    "pydantic_ai": ["pydantic-ai-slim[openai]"],
}
AI_SDK = ["ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "zod"]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    stored = str(tmp_path_factory.mktemp("stored"))
    with serving("--max-model-len", "2048", "--store-responses", stored) as running:
        yield running


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("library", PYTHON_LIBRARIES)
def test_a_python_library_works(server, library):
    uv = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable]
    needs = [word for package in PYTHON_LIBRARIES[library] for word in ("--with", package)]
    run([*uv, *needs, "python", f"client_{library}.py", server.url], FOLDER)


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_ai_sdk_works(server, tmp_path):
    run(["npm", "install", "--no-audit", "--no-fund", "--silent", *AI_SDK], tmp_path)
    shutil.copy(FOLDER / "ai_sdk.mjs", tmp_path)
    run(["node", "ai_sdk.mjs", server.url], tmp_path)

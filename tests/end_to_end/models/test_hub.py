"""A model named `org/name` is downloaded from a hub: here a local server with the demo model's files."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NamedTuple

import psutil
import pytest

from paged_serve.frontend.config.model_folder import find_model_folder
from paged_serve.frontend.hub.cache import CachedModel
from paged_serve.protocol.errors import ConfigError

from ...gguf_files import Type, write_gguf
from ..serving import ROOT

DEMO = ROOT / "paged_serve" / "demo_model"
COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """Answers the two requests of a download: the list of files, and each file."""

    more: ClassVar[dict[str, bytes]] = {}  # in addition to the demo model's files, by path
    has_demo: ClassVar[bool] = True
    status: ClassVar[int] = 200
    revisions: ClassVar[tuple[str, ...]] = ("main",)

    def do_GET(self) -> None:
        if self.status != 200:
            self._answer(b"", {})
        elif self.path.split("?")[0] in self._models():
            names = [*(path.name for path in self._demo()), *self.more, "pytorch_model.bin"]
            files = [{"rfilename": name} for name in names]
            self._answer(json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": files}).encode(), {})
        elif self.path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": COMMIT} for path in self._demo()
            ] + [{"type": "file", "path": name, "size": len(data), "oid": COMMIT} for name, data in self.more.items()]
            self._answer(json.dumps(tree).encode(), {})
        elif self.path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            name = self.path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
            data = self.more[name] if name in self.more else (DEMO / name).read_bytes()
            self._answer(data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT})
        else:
            self.send_response(404)
            known = self.path.startswith("/api/models/org/tiny/revision/")
            self.send_header("X-Error-Code", "RevisionNotFound" if known else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET  # noqa: N815 (the library names it)

    def _models(self) -> list[str]:
        place = "/api/models/org/tiny"
        return [place, *(f"{place}/revision/{revision}" for revision in self.revisions)]

    def _demo(self) -> list[Path]:
        return list(DEMO.iterdir()) if self.has_demo else []

    def _answer(self, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(self.status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


FIND = (
    "import sys; from paged_serve.frontend.config.model_folder import find_model_folder as f; print(f(*sys.argv[1:]))"
)


def variables(hub: str, cache: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": hub,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
    }


class Found(NamedTuple):
    """What the search for a model ended with: a folder, or the reason why there is none."""

    folder: str
    reason: str


def find(model: str, hub: str, cache: Path, revision: str = "") -> Found:
    """Search in this process; what depends on the variables is done in others."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(hub, cache).items():
            patch.setenv(name, value)
        try:
            return Found(find_model_folder(model, revision), "")
        except ConfigError as error:
            return Found("", str(error))


def test_a_download_ends_with_the_process_that_waits_for_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        environment = variables(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        with subprocess.Popen([sys.executable, "-c", FIND, "org/tiny"], env=environment) as waiting:
            connection, _ = silent.accept()
            downloads = psutil.Process(waiting.pid).children()
            waiting.terminate()
        _, alive = psutil.wait_procs(downloads, timeout=30)
        connection.close()
    assert len(downloads) == 1
    assert alive == []


def test_a_hub_name_is_downloaded_once_and_only_what_is_needed(hub, tmp_path):
    done = find("org/tiny", hub, tmp_path)
    assert not done.reason
    folder = Path(done.folder)
    assert (folder / "model.safetensors").read_bytes() == (DEMO / "model.safetensors").read_bytes()
    assert (folder / "chat_template.jinja").exists()
    assert not (folder / "pytorch_model.bin").exists()
    again = find("org/tiny", "http://127.0.0.1:9", tmp_path)  # no server at this address: the cache is used
    assert again == done


def test_without_the_hub_a_model_is_served_if_all_it_needs_is_in_the_cache(hub, tmp_path, monkeypatch):
    """Another program, or an earlier version, may have downloaded fewer files of the same kinds."""
    monkeypatch.setattr(Hub, "more", {"notes.json": b"{}"})
    folder = Path(find("org/tiny", hub, tmp_path).folder)
    (folder / "notes.json").unlink()
    away = find("org/tiny", "http://127.0.0.1:9", tmp_path)
    assert away == (str(folder), "")
    for needed in ("model.safetensors", "generation_config.json"):
        (folder / needed).rename(tmp_path / needed)
        away = find("org/tiny", "http://127.0.0.1:9", tmp_path)
        assert "it is not available, and the local cache has only a part of org/tiny" in away.reason
        (tmp_path / needed).rename(folder / needed)


def test_a_revision_is_downloaded_and_found_again_without_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(Hub, "revisions", ("v1.0",))
    done = find("org/tiny", hub, tmp_path, "v1.0")
    assert (Path(done.folder) / "model.safetensors").exists(), done.reason
    away = "http://127.0.0.1:9"
    for revision in ("v1.0", COMMIT):
        assert find("org/tiny", away, tmp_path, revision) == done
    assert (
        "cannot be reached, and v2 of org/tiny is not in the local cache"
        in find("org/tiny", away, tmp_path, "v2").reason
    )


def test_a_revision_that_does_not_exist_is_named(hub, tmp_path):
    assert "from the Hugging Face hub: org/tiny has no revision v2" in find("org/tiny", hub, tmp_path, "v2").reason
    assert "revision=v2: only a model on the hub has revisions" in find(str(DEMO), hub, tmp_path, "v2").reason


@pytest.mark.parametrize("status", [429, 500])
def test_what_the_hub_answers_instead_of_a_model_is_named(status, hub, tmp_path, monkeypatch):
    monkeypatch.setattr(Hub, "status", status)
    assert f"it answers {status}" in find("org/tiny", hub, tmp_path).reason


def test_the_modules_of_sentence_transformers_are_downloaded_too(hub, tmp_path, monkeypatch):
    modules = {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "onnx/config.json": b"{}"}
    monkeypatch.setattr(Hub, "more", modules)
    done = find("org/tiny", hub, tmp_path)
    assert not done.reason
    folder = Path(done.folder)
    assert (folder / "1_Pooling" / "config.json").exists()
    assert (folder / "model.safetensors").exists()
    assert not (folder / "onnx").exists()


def test_further_templates_and_the_code_of_a_model_are_downloaded_too(hub, tmp_path, monkeypatch):
    needed = {"additional_chat_templates/tool_use.jinja": b"tools", "modeling_tiny.py": b"pass"}
    others = {"onnx/model.json": b"{}", "examples/train.py": b"pass", "tokenizer/tokenizer.json": b"{}"}
    monkeypatch.setattr(Hub, "more", needed | others)
    done = find("org/tiny", hub, tmp_path)
    assert not done.reason
    folder = Path(done.folder)
    assert {name for name in needed | others if (folder / name).exists()} == set(needed)


def test_a_second_copy_of_the_weights_is_not_downloaded(hub, tmp_path, monkeypatch):
    """Repositories of Mistral have their weights twice."""
    copies = {"consolidated.safetensors": b"", "consolidated-00001-of-00002.safetensors": b""}
    monkeypatch.setattr(Hub, "more", copies | {"consolidated.safetensors.index.json": b"{}"})
    done = find("org/tiny", hub, tmp_path)
    assert not done.reason
    assert {path.name for path in Path(done.folder).glob("*.safetensors*")} == {"model.safetensors"}
    assert find("org/tiny", "http://127.0.0.1:9", tmp_path) == done


def test_a_name_unknown_to_the_hub_is_refused_in_one_line(hub, tmp_path):
    done = find("org/nowhere", hub, tmp_path)
    assert "org/nowhere" in done.reason
    assert "\n" not in done.reason


def run(hub: str, cache: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paged_serve", *arguments]
    return subprocess.run(
        command, env=variables(hub, cache), input=given, capture_output=True, text=True, timeout=60, check=False
    )


def test_models_are_pulled_listed_and_removed(hub, tmp_path):
    assert "(none;" in run(hub, tmp_path, "ls").stderr
    pulled = run(hub, tmp_path, "pull", "org/tiny")
    assert (pulled.returncode, pulled.stdout[-42:]) == (0, f"/{COMMIT}\n"), pulled.stderr
    heading, row = run(hub, tmp_path, "ls").stdout.splitlines()
    assert heading.split() == ["NAME", "SIZE", "ARCHITECTURE", "LAST", "USED"]
    assert row.split()[0] == "org/tiny"
    assert "ForCausalLM" in row
    misspelt = run(hub, tmp_path, "rm", "org/tinny")
    assert misspelt.returncode == 2
    assert "did you mean org/tiny?" in misspelt.stderr
    assert "Aborted" in run(hub, tmp_path, "rm", "org/tiny", given="").stderr
    run(hub, tmp_path, "rm", "org/tiny", given="n\n")
    assert list(tmp_path.rglob("*.safetensors"))
    removed = run(hub, tmp_path, "rm", "--yes", "org/tiny")
    assert (removed.returncode, removed.stdout[:17]) == (0, "removed org/tiny,")
    assert "org/tiny" not in run(hub, tmp_path, "ls").stdout
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("config", ["{", "[]", "{}", '{"architectures": null}', '{"architectures": []}'])
def test_a_model_without_an_architecture_is_listed_too(config, tmp_path):
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text(config)
    assert CachedModel("org/tiny", tmp_path, 0, 0.0, (COMMIT,)).architecture == "?"


def test_a_model_that_cannot_be_pulled_is_refused(hub, tmp_path):
    for name, words in (("org/nowhere", "there is no model org/nowhere"), ("/tmp", "is not a name on the hub")):
        refused = run(hub, tmp_path, "pull", name)
        assert refused.returncode == 2
        assert words in refused.stderr


@pytest.fixture(scope="module")
def demo_gguf(tmp_path_factory) -> bytes:
    return write_gguf(DEMO, tmp_path_factory.mktemp("gguf") / "demo.gguf", lambda name, tensor: Type.Q8_0).read_bytes()


@pytest.fixture
def gguf_hub(hub, monkeypatch, demo_gguf) -> str:
    """A repository that has models in GGUF files only, two of them in folders."""
    names = ("tiny-Q8_0.gguf", "tiny-q4_k_m.gguf", "F16/tiny-F16.gguf", "old/tiny-F16.gguf")
    others = {"mmproj-tiny-Q8_0.gguf": b"", "README.md": b""}
    monkeypatch.setattr(Hub, "more", dict.fromkeys(names, demo_gguf) | others)
    monkeypatch.setattr(Hub, "has_demo", False)
    return hub


@pytest.mark.parametrize(
    "model", [pytest.param("org/tiny:Q8_0", marks=pytest.mark.nightly), "org/tiny:Q4_K_M", "org/tiny/old/tiny-F16.gguf"]
)
def test_a_gguf_model_is_downloaded_by_its_tag_or_its_file(model, gguf_hub, tmp_path, demo_gguf):
    done = find(model, gguf_hub, tmp_path)
    assert not done.reason
    folder = Path(done.folder)
    assert (folder / "config.json").exists()
    assert (folder / "model.gguf").read_bytes() == demo_gguf
    assert len(list((tmp_path / "hub").rglob("*.gguf"))) == 1
    again = find(model, "http://127.0.0.1:9", tmp_path)  # no server at this address: the cache is used
    assert again == done


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("org/tiny:Q5_K", "it has no GGUF file Q5_K; it has org/tiny:F16, org/tiny:Q8_0, org/tiny:q4_k_m"),
        ("org/tiny:F16", "name one: org/tiny/F16/tiny-F16.gguf, org/tiny/old/tiny-F16.gguf"),
        ("org/tiny", "org/tiny has no *.safetensors; it has org/tiny:F16, org/tiny:Q8_0, org/tiny:q4_k_m"),
        ("org/tiny/other.gguf", "it has no file other.gguf; it has org/tiny:F16"),
    ],
)
def test_a_name_of_no_gguf_model_is_refused_with_those_that_exist(model, words, gguf_hub, tmp_path):
    reason = find(model, gguf_hub, tmp_path).reason
    assert words in reason
    assert "Traceback" not in reason


def test_a_gguf_model_in_parts_is_downloaded_whole(gguf_hub, tmp_path, monkeypatch):
    names = [f"Q6_K/tiny-Q6_K-{part:05}-of-00002.gguf" for part in (1, 2)]
    monkeypatch.setattr(Hub, "more", dict.fromkeys(names, b"GGUF"))
    for model in ("org/tiny:Q6_K", f"org/tiny/{names[0]}"):
        assert "tiny-Q6_K-00001-of-00002.gguf" in find(model, gguf_hub, tmp_path).reason
        assert len(list((tmp_path / "hub").rglob("*.gguf"))) == 2


def test_a_gguf_model_is_pulled_and_listed(gguf_hub, tmp_path):
    assert run(gguf_hub, tmp_path, "pull", "org/tiny:q8_0").returncode == 0
    _, row = run(gguf_hub, tmp_path, "ls").stdout.splitlines()
    assert row.split()[0] == "org/tiny"
    assert "GGUF" in row

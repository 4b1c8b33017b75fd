"""A process that replaces another reads the same files, or the server ends: no stream continues with other bytes."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paged_serve import Client, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.transport.curve import make_keys

from ..server_process import ServerProcess

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


@pytest.fixture
def start(tmp_path_factory) -> Iterator[Callable[..., ServerProcess]]:
    servers = []

    def start(*options: str) -> ServerProcess:
        home = tmp_path_factory.mktemp("t")
        model = shutil.copytree(demo_model_folder(), home / "model")
        servers.append(ServerProcess(home, str(model), "--served-model-name", "demo", *options))
        servers[-1].wait_ready()
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def negate(weights: Path) -> None:
    """Change the sign of every second weight, in place."""
    content = bytearray(weights.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    content[begin + 1 :: 4] = bytes(byte ^ 0x80 for byte in content[begin + 1 :: 4])
    with weights.open("r+b") as file:
        file.write(content)


def ends(server: ServerProcess, reason: str) -> None:
    """The server ends with one reason. A service manager starts it again after exit code 1, with the new files."""
    assert server.process.wait(60) == 1, server.stderr()
    *_, last = server.stderr().splitlines()
    assert last.startswith("paged-serve: ")
    assert reason in last
    assert "Traceback" not in server.stderr()


def test_a_stream_does_not_continue_with_weights_that_were_written_meanwhile(start):
    server = start()
    undisturbed = server.complete(max_tokens=300, ignore_eos=True)
    server.wait_for_standby()  # it was started before the change, and reads the weights after it
    negate(server.temporary / "model" / "model.safetensors")
    worker = server.children()["worker"]
    stream = server.stream(max_tokens=300, ignore_eos=True)
    received = next(stream)
    worker.kill()  # at once: a worker left alone writes the rest of the stream within a second
    received += "".join(stream)
    assert undisturbed.startswith(received)
    assert received != undisturbed
    ends(server, "model.safetensors was changed after the server had started")


def test_a_frontend_is_not_replaced_by_one_with_another_tokenizer(start):
    server = start("--no-standby-workers")
    with (server.temporary / "model" / "tokenizer.json").open("a") as file:
        file.write("\n")
    server.children()["frontend"].kill()
    ends(server, "tokenizer.json was changed after the server had started")


def test_keys_of_clients_that_became_unusable_end_no_server(start, tmp_path):
    for name in ("server", "client"):
        make_keys(str(tmp_path), name)
    listed = tmp_path / "listed"
    listed.mkdir()
    shutil.copy(tmp_path / "client.key", listed)
    keys = "--client-server-key", str(tmp_path / "server.key_secret"), "--client-keys", str(listed)
    server = start("--client-address", "tcp://127.0.0.1:*", "--no-standby-workers", *keys)
    answer = server.complete(max_tokens=8)
    (listed / "half-written.key").write_text("")
    server.children()["engine-core"].kill()
    assert server.complete_when_ready(max_tokens=8) == answer
    *_, address = re.findall(r"remote clients=(\S+)", server.stderr())
    with Client.connect(address, key=tmp_path / "client.key_secret", server_key=tmp_path / "server.key") as client:
        [*deltas] = client.submit([1, 2], SamplingParams(max_tokens=4))
        assert deltas[-1].finish_reason is not None
    shutil.rmtree(listed)
    server.children()["engine-core"].kill()
    assert server.complete_when_ready(max_tokens=8) == answer
    assert server.stderr().count("remote clients=") == 2, "none can connect any longer"

"""A process that replaces another reads the same files, or the server ends: no stream continues with other bytes.

Keys of clients on other hosts are read again.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.errors import ConfigError, EngineDead, PagedServeError
from paged_serve.protocol.messages.engine_core import Utility
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.transport.curve import make_keys

from ...chaos.faults import run_dir
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


@pytest.fixture
def keys(tmp_path) -> Path:
    """Keys of the server and of two clients, one of which is listed."""
    for name in ("server", "unlisted", "listed/me"):
        make_keys(str((tmp_path / name).parent), (tmp_path / name).name)
    return tmp_path


def test_a_server_for_other_hosts_survives_unusable_keys_and_ends_where_its_tokenizer_was_changed(start, keys):
    options = ("--client-server-key", str(keys / "server.key_secret"), "--client-keys", str(keys / "listed"))
    server = start("--client-address", "tcp://127.0.0.1:*", "--no-standby-workers", *options)
    check_that_a_listed_key_gets_the_same_tokens(server, keys)
    check_that_unusable_keys_end_no_server(server, keys)
    with (server.temporary / "model" / "tokenizer.json").open("a") as file:
        file.write("\n")
    server.children()["frontend"].kill()
    ends(server, "tokenizer.json was changed after the server had started")


def tokens(client: Client) -> list[int]:
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=40, ignore_eos=True)
    return [token for delta in client.submit([5, 6, 7], params) for token in delta.token_ids]


def remote_client(server: ServerProcess, keys: Path, name: str, **options: float) -> Client:
    *_, address = re.findall(r"remote clients=(\S+)", server.stderr())
    return Client.connect(address, key=str(keys / f"{name}.key_secret"), server_key=str(keys / "server.key"), **options)


def check_that_a_listed_key_gets_the_same_tokens(server: ServerProcess, keys: Path) -> None:
    with Client.connect(str(run_dir(server))) as local, remote_client(server, keys, "listed/me") as remote:
        assert tokens(remote) == tokens(local)
        assert b"num_running" in remote.utility(Utility.STATS)
        with pytest.raises(PagedServeError, match="RESET_PREFIX_CACHE is not answered to other hosts"):
            remote.utility(Utility.RESET_PREFIX_CACHE)
    with pytest.raises(EngineDead, match="no answer"):
        remote_client(server, keys, "unlisted", timeout_s=0.5)
    *_, address = re.findall(r"remote clients=(\S+)", server.stderr())
    with pytest.raises(ConfigError, match="asks for keys"):
        Client.connect(address)


def check_that_unusable_keys_end_no_server(server: ServerProcess, keys: Path) -> None:
    """The list of keys is read by each core."""
    answer = server.complete(max_tokens=8)
    (keys / "listed" / "half-written.key").write_text("")
    server.children()["engine-core"].kill()
    assert server.complete_when_ready(max_tokens=8) == answer
    with remote_client(server, keys, "listed/me") as client:
        assert len(tokens(client)) == 40
    shutil.rmtree(keys / "listed")
    server.children()["engine-core"].kill()
    assert server.complete_when_ready(max_tokens=8) == answer
    assert server.stderr().count("remote clients=") == 2, "none can connect any longer"

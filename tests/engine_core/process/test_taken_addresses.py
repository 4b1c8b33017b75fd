"""Another program has taken a TCP port of the core while a new core was started."""

import contextlib
import socket

import pytest
from msgspec import structs

from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.config import KVEventsConfig, ServerConfig
from paged_serve.protocol.transport.curve import make_keys

from .engine_harness import EngineHarness
from .running_core import PARAMS, PROMPT, config, expected, start, tokens_of


@pytest.fixture
def taken_port():
    """A socket whose port another program has taken after the death of a core."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other


def address_of(other):
    return f"tcp://127.0.0.1:{other.getsockname()[1]}"


def with_events(address, run_dir, keys):
    return structs.replace(config(), kv_events=KVEventsConfig(f"ipc://{run_dir}/events", address))


def with_remote_clients(address, run_dir, keys):
    make_keys(str(keys), "server")
    (keys / "clients").mkdir()
    make_keys(str(keys / "clients"), "listed")
    names = {"client_server_key": f"{keys}/server.key_secret", "client_keys": f"{keys}/clients"}
    return structs.replace(config(), server=ServerConfig(client_address=address, **names))


@pytest.mark.parametrize("settings_of", [with_events, with_remote_clients])
def test_only_the_first_core_is_refused_when_an_address_is_taken(run_dir, ranks, tmp_path, taken_port, settings_of):
    """One that replaces it has requests to continue; and the next one uses the address if it is free again."""
    settings = settings_of(address_of(taken_port), run_dir, tmp_path)
    with contextlib.closing(EngineHarness(run_dir, settings)) as harness:
        failed = harness.wait_for(control.Failed)
        assert (failed.refused, address_of(taken_port) in failed.reason) == (True, True)
    with contextlib.closing(EngineHarness(run_dir, settings, epoch=1)) as harness:
        start(harness, ranks, epoch=1)
        with Client.connect(run_dir) as client:
            assert tokens_of(client.submit(PROMPT, PARAMS)) == expected()
        line = next(line for line in harness.process.stderr if address_of(taken_port).encode() in line)
        assert b"the next one tries again" in line
    port = taken_port.getsockname()
    taken_port.close()
    with contextlib.closing(EngineHarness(run_dir, settings, epoch=2)) as harness:
        start(harness, ranks, epoch=2)
        harness.wait_for(control.Ready)
        socket.create_connection(port).close()

"""The client library over TCP: a client with a listed key gets the same tokens as one on the server's host."""

import re

import pytest

from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.errors import ConfigError, EngineDead, PagedServeError
from paged_serve.protocol.messages.engine_core import Utility
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.transport.curve import make_keys

from ..serving import serving

PARAMS = SamplingParams(temperature=0.9, seed=4, max_tokens=40, ignore_eos=True)


def tokens(client: Client, prompt: list[int]) -> list[int]:
    return [token for delta in client.submit(prompt, PARAMS) for token in delta.token_ids]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("server", "unlisted", "clients/me"):
        make_keys(str((folder / name).parent), (folder / name).name)
    return folder


@pytest.fixture(scope="module")
def server(keys):
    options = ("--client-server-key", str(keys / "server.key_secret"), "--client-keys", str(keys / "clients"))
    with serving("--client-address", "tcp://127.0.0.1:*", *options) as server:
        yield server


def test_a_listed_key_gets_the_same_tokens(server, keys):
    address = re.search(r"tcp://127.0.0.1:\d+", server.output())[0]
    credentials = {"key": str(keys / "clients" / "me.key_secret"), "server_key": str(keys / "server.key")}
    with Client.connect(server.run_dir) as local, Client.connect(address, **credentials) as remote:
        assert tokens(remote, [5, 6, 7]) == tokens(local, [5, 6, 7])
        assert b"num_running" in remote.utility(Utility.STATS)
        with pytest.raises(PagedServeError, match="RESET_PREFIX_CACHE is not answered to other hosts"):
            remote.utility(Utility.RESET_PREFIX_CACHE)
    unlisted = {"key": str(keys / "unlisted.key_secret"), "server_key": str(keys / "server.key")}
    with pytest.raises(EngineDead, match="no answer"):
        Client.connect(address, timeout_s=0.5, **unlisted)
    with pytest.raises(ConfigError, match="asks for keys"):
        Client.connect(address)

"""Keys for TCP: listed clients are accepted, others are not, and unusable files are refused by name."""

import os
from pathlib import Path

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.engine_core import ClientHeartbeat, EngineHeartbeat, FromEngineCore, ToEngineCore
from paged_serve.protocol.messages.handshake import identity
from paged_serve.protocol.transport.authentication import Authenticator
from paged_serve.protocol.transport.channel import DealerChannel, RouterChannel, new_context
from paged_serve.protocol.transport.curve import client_keys, make_keys, server_keys

from ...workers.tier.accidents import full_disk

NAME = identity("client", 0, 0)


@pytest.fixture
def keys(tmp_path):
    """A folder with the keys of a server, of a listed client and of an unlisted one."""
    for folder, name in (("", "server"), ("", "other-server"), ("", "unlisted"), ("listed_keys", "listed")):
        make_keys(str(tmp_path / folder), name)
    (tmp_path / "listed_keys" / "listed.key_secret").rename(tmp_path / "listed.key_secret")
    return tmp_path


@pytest.fixture
def port(keys):
    context = new_context()
    ours = server_keys(str(keys / "server.key_secret"), str(keys / "listed_keys"))
    authenticator = Authenticator(context, "secret", ours.allowed)
    port = RouterChannel(context, "tcp://127.0.0.1:*", ToEngineCore, keys=ours)
    yield port
    port.close()
    authenticator.close()
    context.term()


@pytest.fixture
def dealer(port):
    """dealer(credentials) connects to the port."""
    context, opened = new_context(), []

    def connect(credentials):
        opened.append(DealerChannel(context, port.endpoint, credentials, NAME, FromEngineCore))
        return opened[-1]

    yield connect
    for channel in opened:
        channel.close()
    context.term()


def test_a_listed_client_is_accepted_and_answered(keys, port, dealer):
    listed = dealer(client_keys(str(keys / "listed.key_secret"), str(keys / "server.key")))
    assert listed.wait_connected(60)
    assert listed.send(ClientHeartbeat())
    assert port.socket.poll(60_000)
    assert port.receive() == (NAME, ClientHeartbeat())
    assert port.send(NAME, EngineHeartbeat(7))
    assert listed.receive(60) == EngineHeartbeat(7)


@pytest.mark.parametrize(("own", "server"), [("unlisted", "server"), ("listed", "other-server")])
def test_unlisted_clients_and_clients_of_another_server_are_not_accepted(keys, dealer, own, server):
    assert not dealer(client_keys(str(keys / f"{own}.key_secret"), str(keys / f"{server}.key"))).wait_connected(0.3)


def test_the_secret_of_the_run_gives_no_access_over_tcp(dealer):
    assert not dealer("secret").wait_connected(0.3)


def test_garbage_is_never_delivered(port):
    import socket

    host, _, number = port.endpoint.removeprefix("tcp://").rpartition(":")
    for blob in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" + os.urandom(200), b"\x01\x00" * 100, os.urandom(4096)):
        with socket.create_connection((host, int(number))) as link:
            link.sendall(blob)
        assert not port.socket.poll(50)


def test_secret_files_are_readable_only_by_their_owner(keys):
    assert os.stat(keys / "server.key_secret").st_mode & 0o077 == 0
    (keys / "server.key_secret").chmod(0o640)
    with pytest.raises(ConfigError, match=r"server.key_secret has mode 640.*600"):
        server_keys(str(keys / "server.key_secret"), str(keys / "listed_keys"))


@pytest.mark.parametrize(
    ("secret", "folder", "words"),
    [
        ("server.key", "listed_keys", "no secret key"),
        ("none.key_secret", "listed_keys", "cannot read the key"),
        ("server.key_secret", "nowhere", "no folder"),
        ("server.key_secret", "empty", "no client can connect"),
        ("server.key_secret", "broken", r"broken/a.key"),
        ("server.key_secret", "damaged", r"damaged/a.key has a key that is not written in Z85"),
        ("server.key_secret", "too large", r"too large/a.key has a key that is not written in Z85"),
    ],
)
def test_an_unusable_key_file_is_refused_by_name(keys, secret, folder, words):
    (keys / "empty").mkdir()
    for name, key in (("broken", "short"), ("damaged", "~" * 40), ("too large", "#" * 40)):
        (keys / name).mkdir()
        (keys / name / "a.key").write_text(f'curve\n    public-key = "{key}"\n')
    with pytest.raises(ConfigError, match=words):
        server_keys(str(keys / secret), str(keys / folder))


def test_keys_are_never_overwritten(keys):
    before = Path(keys / "server.key_secret").read_text()
    with pytest.raises(ConfigError, match="already exists"):
        make_keys(str(keys), "server")
    assert Path(keys / "server.key_secret").read_text() == before


def test_keys_that_find_no_space_leave_no_file(tmp_path):
    with full_disk(100), pytest.raises(ConfigError, match="cannot write keys"):
        make_keys(str(tmp_path), "server")
    assert list(tmp_path.iterdir()) == []
    make_keys(str(tmp_path), "server")


@pytest.mark.parametrize("name", ["a/b", "/a", "..", ""])
def test_a_name_with_a_folder_is_refused_with_the_option_for_folders(tmp_path, name):
    with pytest.raises(ConfigError, match="is not the name of a file; name the folder with --folder"):
        make_keys(str(tmp_path), name)
    assert list(tmp_path.iterdir()) == []

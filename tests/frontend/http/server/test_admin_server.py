"""The operator's server of a frontend that replaces another."""

import socket

import pytest

from paged_serve.frontend.http.server.admin_server import AdminServer
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ServerConfig


def test_only_the_first_frontend_is_refused_when_the_operators_port_is_taken(run_dir):
    """One that replaces it has users to serve; the next one uses the port if it is free again."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = ServerConfig(admin_port=other.getsockname()[1])
        admin = AdminServer(taken, run_dir, 0, is_replacement=True)
        assert admin.facts() == {"admin": f"{run_dir}/admin-0.sock"}
        for listener in admin._listeners:
            listener.close()
        with pytest.raises(ConfigError, match=r"in use; .* --admin-port"):
            AdminServer(taken, run_dir, 0)
    admin = AdminServer(taken, run_dir, 0, is_replacement=True)
    assert admin.facts() == {"admin": f"http://127.0.0.1:{taken.admin_port}"}
    for listener in admin._listeners:
        listener.close()

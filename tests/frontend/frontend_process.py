"""A real frontend process, with the test as its supervisor."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.config import Config, ModelConfig, ServerConfig
from paged_serve.protocol.messages.message import Hello
from paged_serve.protocol.process.lifeline import lifeline_pipe
from paged_serve.protocol.transport.authentication import Authenticator, read_secret
from paged_serve.protocol.transport.channel import RouterChannel, new_context
from paged_serve.protocol.transport.run_dir import CONTROL_SOCKET, endpoint


class FrontendUnderTest:
    """Acts as the supervisor of one frontend process: its listening socket, control link and lifeline."""

    def __init__(self, run_dir, folder, *, welcome=True, **server):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._context = new_context()
        self._authenticator = Authenticator(self._context, read_secret(run_dir))
        self._control = RouterChannel(self._context, endpoint(run_dir, CONTROL_SOCKET), control.FromChild)
        self.config = Config(model=ModelConfig(model=str(folder)), server=ServerConfig(port=self.port, **server))
        lifeline, self._life = lifeline_pipe()
        self.started = time.monotonic()
        options = {"--run-dir": run_dir, "--index": 0, "--epoch": 0, "--lifeline-fd": lifeline}
        options["--http-fd"] = self.listener.fileno()
        arguments = [str(part) for option in options.items() for part in option]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paged_serve.frontend.http.server", *arguments],
            pass_fds=(lifeline, self.listener.fileno()),
        )
        os.close(lifeline)
        self.peer, hello = self._next(Hello)
        assert hello.role == "frontend"
        if welcome:
            self.send(control.Welcome(self.config))

    def wait_for(self, kind, timeout_s=60.0):
        return self._next(kind, timeout_s)[1]

    def _next(self, kind, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (item := self._control.receive()) is None:
                self._control.socket.poll(50)
            elif isinstance(item[1], kind):
                return item
            else:
                assert not isinstance(item[1], control.Failed), item[1]
        raise AssertionError(f"no {kind.__name__} within {timeout_s} s")

    def send(self, message):
        assert self._control.send(self.peer, message)

    def get(self, path, timeout_s=60.0):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout_s) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def wait_for_status(self, path, status):
        deadline = time.monotonic() + 60
        while self.get(path)[0] != status:
            assert time.monotonic() < deadline

    def raw(self, data: bytes, timeout_s=60.0) -> bytes:
        """Everything that the server answers to these bytes until it closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as link:
            link.sendall(data)
            answer = b""
            while more := link.recv(65536):
                answer += more
            return answer

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._life)
        self.listener.close()
        self._control.close()
        self._authenticator.close()
        self._context.term()

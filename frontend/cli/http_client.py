"""The little HTTP that the terminal commands need: one streamed request at a time, over TCP or a unix socket."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from paged_serve.protocol.errors import ConfigError, EngineDead, InvalidRequest, PagedServeError


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str):
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class HttpClient:
    """`url` is http://host:port[/root] or unix:/path."""

    def __init__(self, url: str, api_key: str = ""):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "unix") or not (parts.netloc or parts.scheme == "unix"):
            raise ConfigError(f"{url} is no address; give one like http://127.0.0.1:8000")
        self._url = url
        self._parts = parts
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def models(self) -> list[str]:
        """The names that requests may use."""
        with self._response("GET", "/v1/models", None) as response:
            return [model["id"] for model in json.loads(response.read())["data"]]

    def is_up(self, path: str) -> bool:
        """Whether GET `path` is answered with 200 now."""
        try:
            with self._response("GET", path, None):
                return True
        except PagedServeError:
            return False

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed answer; leaving the iterator closes the connection, which aborts the request."""
        with self._response("POST", path, {**body, "stream": True}) as response:
            for line in response:
                if line.startswith(b"data: ") and (data := line[6:].strip()) != b"[DONE]":
                    event = json.loads(data)
                    if "error" in event:
                        raise EngineDead(event["error"]["message"])
                    yield event

    @contextmanager
    def _response(self, method: str, path: str, body: dict[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        try:
            root = "" if self._parts.scheme == "unix" else self._parts.path.rstrip("/")
            connection.request(method, root + path, json.dumps(body) if body else None, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise InvalidRequest(f"the server answers {response.status}: {_message(response.read())}")
            yield response
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise EngineDead(f"no answer from {self._url}: {reason}") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path)
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(self._parts.netloc)
        return http.client.HTTPConnection(self._parts.netloc)


def _message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")

"""Answers /live while the HTTP server is still being imported; all other requests wait for the server, unread."""

import contextlib
import os
import selectors
import socket
import threading

MAX_WAITING = 128  # connections; more stay in the listening socket's queue
_MAX_HEAD_BYTES = 4096
_ALIVE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"


class EarlyHealth:
    """Accepts connections in a thread, from the start of a frontend until `leave`.

    The modules of the HTTP server take ten times longer to import than this one, and probes come early.
    """

    def __init__(self, http_fd: int):
        """`http_fd` is bound and listening; the caller keeps it."""
        self._listener = socket.socket(fileno=os.dup(http_fd))
        self._listener.setblocking(False)
        self._waiting: dict[socket.socket, None] = {}
        self._bell, self._ring = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="early_health", daemon=True)
        self._thread.start()

    def leave(self) -> list[socket.socket]:
        """End the thread. Returns the connections that are not answered yet, unread."""
        self._ring.close()
        self._thread.join()
        self._bell.close()
        self._listener.close()
        return list(self._waiting)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as door:
            door.register(self._bell, selectors.EVENT_READ)
            door.register(self._listener, selectors.EVENT_READ)
            while all(self._serves(key, door) for key, _ in door.select()):
                pass

    def _serves(self, key: selectors.SelectorKey, door: selectors.BaseSelector) -> bool:
        """Attend to what is ready; False at the end."""
        if key.fileobj is self._listener:
            self._accept_connection(door)
        elif key.fileobj is not self._bell:
            door.unregister(key.fileobj)
            self._attend(key.data)
        return key.fileobj is not self._bell

    def _accept_connection(self, door: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):  # another frontend was faster, or the peer has gone
            link, _ = self._listener.accept()
            link.setblocking(False)
            self._waiting[link] = None
            door.register(link, selectors.EVENT_READ, link)
        if len(self._waiting) == MAX_WAITING:
            door.unregister(self._listener)

    def _attend(self, link: socket.socket) -> None:
        with contextlib.suppress(OSError):
            head = link.recv(_MAX_HEAD_BYTES, socket.MSG_PEEK)
            if head.startswith(b"GET /live HTTP/1.") and head.endswith(b"\r\n\r\n") and b"\r\nhost:" in head.lower():
                link.recv(len(head))  # closing with something unread would reset the connection
                link.send(_ALIVE)
                del self._waiting[link]
                link.close()

"""The link between a frontend and a helper: frames of JSON, each preceded by its length (uint32, little-endian)."""

import socket
from collections.abc import Callable

import msgspec


def frame_of(message: msgspec.Struct) -> bytes:
    data = msgspec.json.encode(message)
    return len(data).to_bytes(4, "little") + data


def send_frame(link: socket.socket, message: msgspec.Struct) -> None:
    link.sendall(frame_of(message))


def receive_frame(link: socket.socket, wait: Callable[[], None] = lambda: None) -> bytes:
    """`wait` is called before each part. Raises EOFError when the other side has closed."""
    return _receive_exactly(link, int.from_bytes(_receive_exactly(link, 4, wait), "little"), wait)


def _receive_exactly(link: socket.socket, size: int, wait: Callable[[], None]) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        wait()
        if not (count := link.recv_into(view)):
            raise EOFError
        view = view[count:]
    return bytes(data)

"""The link between a frontend and a helper: frames of JSON, each preceded by its length (uint32, little-endian)."""

import socket

import msgspec


def send_frame(link: socket.socket, message: msgspec.Struct) -> None:
    data = msgspec.json.encode(message)
    link.sendall(len(data).to_bytes(4, "little") + data)


def receive_frame(link: socket.socket) -> bytes:
    """Raises EOFError when the other side has closed."""
    return _receive_exactly(link, int.from_bytes(_receive_exactly(link, 4), "little"))


def _receive_exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if not (count := link.recv_into(view)):
            raise EOFError
        view = view[count:]
    return bytes(data)

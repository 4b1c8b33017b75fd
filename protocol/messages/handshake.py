"""The handshake of every link: both sides compare the protocol version and the hash of all message definitions."""

import functools
import os
from typing import Any

from . import control, engine_core, worker
from .message import PROTOCOL_VERSION, Hello, schema_hash

UNIONS: dict[str, Any] = {
    "client to engine core": engine_core.ToEngineCore,
    "engine core to client": engine_core.FromEngineCore,
    "engine core to worker": worker.ToWorker,
    "worker to engine core": worker.ToCoreFromWorker,
    "supervisor to child": control.ToChild,
    "child to supervisor": control.FromChild,
}


@functools.cache
def protocol_hash() -> str:
    """The schema hash of all links together."""
    return schema_hash(*UNIONS.values())


def identity(role: str, index: int, epoch: int) -> bytes:
    """A unique ZeroMQ identity, so that no message for a dead peer reaches its successor."""
    return f"{role}:{index}:{epoch}:{os.urandom(8).hex()}".encode()


def handshake_hello(role: str, index: int, epoch: int) -> Hello:
    """The first message of a connecting side."""
    return Hello(PROTOCOL_VERSION, protocol_hash(), role, index, epoch, os.getpid())


def check_hello(hello: Hello) -> str:
    """The readable reason to refuse this peer; "" if it is accepted."""
    if hello.protocol_version != PROTOCOL_VERSION:
        return f"protocol version {hello.protocol_version}; this side has {PROTOCOL_VERSION}. Install one version"
    if hello.schema_hash != protocol_hash():
        return f"message definitions {hello.schema_hash}; this side has {protocol_hash()}. Restart all processes"
    return ""

"""Keys for clients on other hosts: CurveZMQ certificates (https://rfc.zeromq.org/spec/26/), in the files that every
ZeroMQ binding reads and writes: NAME.key is public, NAME.key_secret holds both keys and is for its owner alone."""

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

SECRET_SUFFIX = ".key_secret"
PUBLIC_SUFFIX = ".key"


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """What a bound socket needs: its own secret (Z85), and the 32-byte public keys that may come in."""

    secret: bytes
    allowed: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a connecting socket needs, each as Z85."""

    public: bytes
    secret: bytes
    server: bytes


def server_keys(secret_file: str, clients_folder: str) -> ServerKeys:
    """Raises ConfigError when a file is missing, unreadable, open to other users, or would let no client in."""
    if not os.path.isdir(clients_folder):
        raise ConfigError(f"there is no folder {clients_folder!r} of clients' public keys; name it with --client-keys")
    files = sorted(Path(clients_folder).glob(f"*{PUBLIC_SUFFIX}"))
    if not files:
        raise ConfigError(
            f"{clients_folder} has no *{PUBLIC_SUFFIX} file, so no client can connect; `paged-serve keygen` makes them"
        )
    from zmq.utils import z85  # late, like all of zmq.auth here: most servers have no such socket

    _, secret = _load_secret(secret_file, "--client-server-key")
    return ServerKeys(secret, frozenset(z85.decode(_load_public(file)) for file in files))


def client_keys(secret_file: str, server_file: str) -> ClientKeys:
    """Raises ConfigError as above."""
    public, secret = _load_secret(secret_file, "key")
    return ClientKeys(public, secret, _load_public(Path(server_file)))


def make_keys(folder: str, name: str) -> tuple[str, str]:
    """(public file, secret file) of a new certificate. Raises ConfigError when there is one of this name."""
    import zmq.auth

    for suffix in (PUBLIC_SUFFIX, SECRET_SUFFIX):
        if os.path.exists(path := os.path.join(folder, name + suffix)):
            raise ConfigError(f"{path} is there already; choose another name or remove it")
    umask = os.umask(0o077)
    try:
        os.makedirs(folder, exist_ok=True)
        public, secret = zmq.auth.create_certificates(folder, name)
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error.strerror}") from error
    finally:
        os.umask(umask)
    return public, secret


def _load_secret(file: str, option: str) -> tuple[bytes, bytes]:
    public, secret = _load(Path(file))
    if secret is None:
        raise ConfigError(f"{file} has no secret key; {option} takes the *{SECRET_SUFFIX} file")
    if (mode := os.stat(file).st_mode & 0o777) & 0o077:
        raise ConfigError(f"{file} has mode {mode:03o}; other users can read it. Set it to 600")
    return public, secret


def _load_public(file: Path) -> bytes:
    return _load(file)[0]


def _load(file: Path) -> tuple[bytes, bytes | None]:
    import zmq.auth

    try:
        public, secret = zmq.auth.load_certificate(str(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the key {file}: {error}") from error
    for key in (public, secret or b""):
        if key and len(key) != 40:
            raise ConfigError(f"{file} has a key of {len(key)} characters; a Z85 key has 40")
    return public, secret

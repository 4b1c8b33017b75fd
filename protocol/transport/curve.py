"""Keys for clients on other hosts: CurveZMQ certificates (https://rfc.zeromq.org/spec/26/), in the files that every
ZeroMQ binding reads and writes: NAME.key is public, NAME.key_secret holds both keys and is for its owner alone."""

import contextlib
import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

log = logging.getLogger(__name__)
SECRET_SUFFIX = ".key_secret"
PUBLIC_SUFFIX = ".key"


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """Keys of a bound socket: its secret key (Z85), and the 32-byte public keys of the clients it accepts."""

    secret: bytes
    allowed: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """Keys of a connecting socket, each as Z85."""

    public: bytes
    secret: bytes
    server: bytes


def server_keys(secret_file: str, clients_folder: str, *, skips_unusable: bool = False) -> ServerKeys:
    """Raises ConfigError when a file is missing, unreadable or open to other users, or when no client has a key.

    `skips_unusable`: a client whose file cannot be read is left out, with a warning.
    """
    if not os.path.isdir(clients_folder):
        raise ConfigError(f"there is no folder {clients_folder!r} of the clients' public keys; set --client-keys")
    files = sorted(Path(clients_folder).glob(f"*{PUBLIC_SUFFIX}"))
    if not files:
        raise ConfigError(
            f"{clients_folder} has no *{PUBLIC_SUFFIX} file, so no client can connect; `paged-serve keygen` makes them"
        )
    from zmq.utils import z85  # imported late, like all of zmq.auth here: most servers have no TCP socket

    _, secret = _load_secret(secret_file, "--client-server-key")
    allowed = set[bytes]()
    for file in files:
        try:
            allowed.add(z85.decode(_load_public(file)))
        except ConfigError as error:
            if not skips_unusable:
                raise
            log.warning("a client cannot connect: %s", error)
    return ServerKeys(secret, frozenset(allowed))


def client_keys(secret_file: str, server_file: str) -> ClientKeys:
    """Raises ConfigError when a file is missing, unreadable or open to other users."""
    public, secret = _load_secret(secret_file, "key")
    return ClientKeys(public, secret, _load_public(Path(server_file)))


def make_keys(folder: str, name: str) -> tuple[str, str]:
    """Make a certificate: (public file, secret file). Raises ConfigError when the name is taken."""
    import zmq.auth

    if Path(name).name != name or name in ("", ".."):
        raise ConfigError(f"{name!r} is not the name of a file; name the folder with --folder")
    files = [Path(folder, name + suffix) for suffix in (PUBLIC_SUFFIX, SECRET_SUFFIX)]
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} already exists; choose another name or remove it")
    umask = os.umask(0o077)
    try:
        os.makedirs(folder, exist_ok=True)
        public, secret = zmq.auth.create_certificates(folder, name)
    except OSError as error:
        with contextlib.suppress(OSError):  # what a full disk has taken of them; a second attempt finds the name free
            for path in files:
                path.unlink(missing_ok=True)
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
        if key:
            _check_key(file, key)
    return public, secret


def _check_key(file: Path, key: bytes) -> None:
    from zmq.utils import z85

    if len(key) != 40:
        raise ConfigError(f"{file} has a key of {len(key)} characters; a Z85 key has 40")
    try:
        z85.decode(key)
    except (KeyError, struct.error):  # a character, or five of them, that Z85 does not have
        raise ConfigError(f"{file} has a key that is not written in Z85; copy the file as it is") from None

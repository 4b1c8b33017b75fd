"""Block hashes: a SHA-256 chain over full KV blocks, so that equal hashes mean equal prefixes.

The root is sha256 over the block size, the LoRA adapter, if any, and the salt; each block's hash is sha256 over its
parent's hash (32 bytes) and its token ids (little-endian int32). Any language can compute it.
"""

import hashlib
from typing import Final

TOKEN_BYTES: Final = 4
HASH_BYTES: Final = 32


def chain_root(block_size: int, cache_salt: str, adapter_digest: str = "") -> bytes:
    """The parent hash of a prompt's first block. Requests share prefixes only when this hash is equal.

    `adapter_digest`: 64 hexadecimal digits of the LoRA adapter, "" for the base model.
    """
    adapter = f" adapter={adapter_digest}" if adapter_digest else ""
    return hashlib.sha256(
        f"paged-serve/1 block_size={block_size}{adapter} salt=".encode() + cache_salt.encode()
    ).digest()


def chain_blocks(parent: bytes, token_bytes: bytes, block_size: int) -> list[bytes]:
    """Hashes of the full blocks in `token_bytes` (int32), continuing after `parent`; an unfilled tail has no hash.

    >>> hashes = chain_blocks(chain_root(2, ""), bytes(4 * 5), block_size=2)
    >>> len(hashes), hashes[1] == chain_blocks(hashes[0], bytes(4 * 2), block_size=2)[0]
    (2, True)
    """
    sha256 = hashlib.sha256
    stride = block_size * TOKEN_BYTES
    names = []
    for start in range(0, len(token_bytes) - stride + 1, stride):
        parent = sha256(parent + token_bytes[start : start + stride]).digest()
        names.append(parent)
    return names

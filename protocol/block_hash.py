"""Names for the contents of full KV blocks: a chain of SHA-256, so that equal names mean equal prefixes.

Canonical encoding: the root is sha256 over the block size and the salt; each block's name is sha256 over its parent's
name (32 bytes) and its token ids (little-endian int32). Any language can compute it.
"""

import hashlib
from typing import Final

TOKEN_BYTES: Final = 4


def chain_root(block_size: int, cache_salt: str) -> bytes:
    """Parent of a prompt's first block. Requests share prefixes only when they share this."""
    return hashlib.sha256(f"paged-serve/1 block_size={block_size} salt=".encode() + cache_salt.encode()).digest()


def chain_blocks(parent: bytes, token_bytes: bytes, block_size: int) -> list[bytes]:
    """Names of the full blocks in `token_bytes` (int32), continuing after `parent`; an unfilled tail has no name.

    >>> names = chain_blocks(chain_root(2, ""), bytes(4 * 5), block_size=2)
    >>> len(names), names[1] == chain_blocks(names[0], bytes(4 * 2), block_size=2)[0]
    (2, True)
    """
    sha256 = hashlib.sha256
    stride = block_size * TOKEN_BYTES
    names = []
    for start in range(0, len(token_bytes) - stride + 1, stride):
        parent = sha256(parent + token_bytes[start : start + stride]).digest()
        names.append(parent)
    return names

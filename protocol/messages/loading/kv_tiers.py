"""KV tiers: blocks of the KV cache that every rank also keeps on disk, where later runs of the server find them.

The core owns a *transfer* of blocks until all ranks have answered it with BlocksMoved: meanwhile no step writes to
these blocks, and none reads blocks that are being loaded. Transfers and steps run concurrently. A StoreBlocks comes
after the steps that compute its blocks, so a rank may begin once the steps received before it are done.

A block is named by its key: the hash of its tokens and all tokens before (block_hash.py), and its KV group. Each rank
stores its own share of a block, and the core loads only what all ranks have. A rank may lose a block at any time, and
refuse to store any; it never returns contents that it did not verify.
"""

from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta

from ...block_hash import HASH_BYTES
from ..message import MAX_STEP_FRAME_BYTES, Bytes, Count, Epoch, Message, Step, check_int32

GROUP_BYTES: Final = 2
KEY_BYTES: Final = HASH_BYTES + GROUP_BYTES
MAX_KEYS: Final = 1 << 20  # in one message
Keys = Annotated[bytes, Meta(max_length=min(MAX_KEYS * KEY_BYTES, MAX_STEP_FRAME_BYTES))]  # KEY_BYTES each


class OpenTier(Message, frozen=True):
    """The workers are ready. Answered by TierContents, then once more for every change."""

    epoch: Epoch


class StoreBlocks(Message, frozen=True):
    """Keep a copy of these full blocks. Answered by BlocksMoved, after the TierContents that it causes."""

    epoch: Epoch
    transfer: Step
    block_ids: Bytes  # int32
    keys: Keys

    def __post_init__(self) -> None:
        _check_transfer(self.block_ids, self.keys)


class LoadBlocks(Message, frozen=True):
    """Fill these blocks. Answered by BlocksMoved."""

    epoch: Epoch
    transfer: Step
    block_ids: Bytes  # int32
    keys: Keys

    def __post_init__(self) -> None:
        _check_transfer(self.block_ids, self.keys)


class DropBlocks(Message, frozen=True):
    """Remove what was stored of these blocks so far, also for later runs: it may hold values that are not finite.

    Answered by BlocksMoved, after the TierContents that it causes. Blocks stored afterwards have new contents.
    """

    epoch: Epoch
    transfer: Step
    keys: Keys

    def __post_init__(self) -> None:
        _check_keys(self.keys)


class TierContents(Message, frozen=True):
    """What this rank's tier has from now on, and what it has no longer."""

    epoch: Epoch
    rank: Count
    added: Keys = b""
    removed: Keys = b""

    def __post_init__(self) -> None:
        _check_keys(self.added)
        _check_keys(self.removed)


class BlocksMoved(Message, frozen=True):
    """This rank no longer touches the blocks of the transfer."""

    epoch: Epoch
    rank: Count
    transfer: Step
    failed: Bytes = b""  # int32 indices of the transfer's blocks: not stored, or of unknown contents

    def __post_init__(self) -> None:
        check_int32(self.failed)


ToWorkerTier = OpenTier | StoreBlocks | LoadBlocks | DropBlocks
FromWorkerTier = TierContents | BlocksMoved


def pack_keys(pool_keys: Iterable[bytes]) -> bytes:
    """Keys of the block pool, which are without a group for group 0, as a message has them."""
    return b"".join(key.ljust(KEY_BYTES, b"\0") for key in pool_keys)


def unpack_keys(keys: bytes) -> list[bytes]:
    """The opposite of `pack_keys`."""
    whole = [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]
    return [key if any(key[HASH_BYTES:]) else key[:HASH_BYTES] for key in whole]


def _check_keys(keys: bytes) -> None:
    if len(keys) % KEY_BYTES:
        raise ValueError(f"{len(keys)} bytes of keys, which have {KEY_BYTES} each")


def _check_transfer(block_ids: bytes, keys: bytes) -> None:
    check_int32(block_ids)
    _check_keys(keys)
    if len(block_ids) // 4 != len(keys) // KEY_BYTES:
        raise ValueError(f"{len(block_ids) // 4} blocks with {len(keys) // KEY_BYTES} keys")

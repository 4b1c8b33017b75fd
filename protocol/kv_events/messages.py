"""Events of the prefix cache, for routers and indexes outside the server: which blocks can be found, and which no more.

The names and the order of fields are those of vLLM 0.11 and later, so that its subscribers read them. A message has
three frames: the topic, the sequence number (8 bytes, big-endian), and a KVEventBatch as msgpack. Sequence numbers
increase by one. A number that does not follow the last one means that batches were lost, or that another engine core
has started: the reader asks for a replay. Batches without events follow a subscription and a quiet time, so that a
reader whose connection broke, or that fell behind, has a number to compare.

A replay request to the replay socket (ROUTER) has two frames: an empty one, and the first wanted sequence number. Each
answer has three: an empty one, a sequence number, a batch; the last has the number -1 and no batch. If the wanted
batches are not kept any more, or the number is not from this engine core, the answer is a snapshot: batches that begin
with AllBlocksCleared and add every block. All of them have the number of the last batch published. A request from
number 0 always gives a snapshot.

Blocks in a KV tier have a medium, and events of their own: a block may be found in the cache, in a tier, or in both. As
from vLLM's offloading, their BlockStored has neither parent nor tokens, which a tier does not know of blocks that it
found when it was opened.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from ..messages.message import Count, TokenId

MEDIUM_CPU = "CPU"  # of blocks in a tier in the host's memory
MEDIUM_STORAGE = "STORAGE"  # of blocks in a tier on disk, whether or not they are in memory, too
SEQUENCE_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]  # see block_hash.py


class _Event(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all events."""


class BlockStored(_Event, frozen=True):
    """Blocks that can be found from now on; without a medium, each is the next one of a prompt or answer."""

    block_hashes: list[Hash]
    # Of the block before the first; of a first block, the root of its chain. None in a tier.
    parent_block_hash: Hash | None
    token_ids: list[TokenId]  # block_size for each block; none in a tier
    block_size: Count
    lora_id: Count | None = None
    medium: str | None = None  # where the blocks are; None: in the memory that steps read
    lora_name: str | None = None
    extra_keys: list[str] | None = None
    group_idx: Count | None = None  # a model with several KV groups stores each block once for each group


class BlockRemoved(_Event, frozen=True):
    """Blocks that can no longer be found."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: Count | None = None


class AllBlocksCleared(_Event, frozen=True):
    """The workers were replaced: no block can be found, in the cache or in a tier. Tiers then list theirs again."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The events between two steps."""

    ts: float  # seconds since 1970
    events: list[KVEvent]
    data_parallel_rank: Count | None = 0


def sequence_bytes(number: int) -> bytes:
    return number.to_bytes(SEQUENCE_BYTES, "big")

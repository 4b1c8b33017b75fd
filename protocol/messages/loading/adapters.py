"""LoRA adapters: which one a request uses, and how the engine core has the workers load it.

A worker has `max_loras` places for adapters, numbered from 1; 0 is the base model. The core assigns places. It sends
LoadAdapter to all ranks and schedules rows of that adapter only once every rank has answered AdapterLoaded without an
error. Loading and steps run concurrently: steps sent before and after LoadAdapter do not wait for it. The core reuses a
place only while no row of an unanswered step has it. New workers know no adapter: the core sends LoadAdapter again.
"""

from typing import Annotated

from msgspec import Meta

from ..message import Count, LongText, Message, Record, ShortText

MAX_LORAS = 1024
MAX_LORA_RANK = 256
AdapterDigest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
AdapterPlace = Annotated[int, Meta(ge=0, le=MAX_LORAS)]  # 0: the base model


class Adapter(Record, frozen=True):
    """A PEFT folder: adapter_config.json and adapter_model.safetensors."""

    name: ShortText
    path: Annotated[str, Meta(min_length=1, max_length=4096)]  # absolute; every worker can read it
    digest: AdapterDigest  # sha256 of what results depend on; equal digests have equal outputs


class LoadAdapter(Message, frozen=True):
    """Load `adapter` into `place` and forget what was there. Answered by AdapterLoaded."""

    place: Annotated[int, Meta(ge=1, le=MAX_LORAS)]
    adapter: Adapter


class AdapterLoaded(Message, frozen=True):
    """The rows of this adapter can run; or, with `error`, the place is empty and the adapter is refused."""

    rank: Count
    place: Annotated[int, Meta(ge=1, le=MAX_LORAS)]
    digest: AdapterDigest
    num_bytes: Annotated[int, Meta(ge=0, le=2**62)] = 0  # of memory that it takes in this rank
    error: LongText = ""

"""Passes millions of corrupted frames to the decoder of each link, and those that are still valid to the engine."""

import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from paged_serve.engine_core.admission.validation import ModelFacts
from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.config import Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest, OutputsReceived
from paged_serve.protocol.messages.handshake import UNIONS, check_hello
from paged_serve.protocol.messages.message import MAX_STEP_FRAME_BYTES, Hello, pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import ModelRunnerOutput
from paged_serve.protocol.transport.channel import _Codec

from .frame_mutator import VARIANTS, FrameMutator
from .random_messages import struct_of

ROUND_FRAMES = 1 << 20  # frames made from one set of valid frames
BATCH_FRAMES = 1 << 14
SAMPLES_OF_EACH = 20
CLIENT = b"client:0"
CONFIG = Config(scheduler=SchedulerConfig(policy="priority"))
EVERY_TOKEN = ModelFacts(
    num_blocks=64, block_size=16, max_model_len=64, vocab_size=2**31 - 1, eos_token_ids=frozenset({0})
)


@dataclass(slots=True)
class Outcomes:
    """The results of the frames; `behind` counts the engine's answers to valid ones."""

    frames: int = 0
    valid: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by type of error
    behind: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Outcomes") -> None:
        self.frames += other.frames
        self.valid += other.valid
        self.refused.update(other.refused)
        self.behind.update(other.behind)

    def __str__(self) -> str:
        refused = ", ".join(f"{count:,} {kind}" for kind, count in self.refused.most_common())
        behind = ", ".join(f"{count:,} {what}" for what, count in self.behind.most_common())
        return f"{self.frames:,} frames, 0 raised; {self.valid:,} valid ({behind}); {refused}"


class Behind:
    """The engine that receives valid messages; there is one per batch."""

    def __init__(self, outcomes: Counter[str]):
        self._outcomes = outcomes
        self.engine = EngineCore(CONFIG, EVERY_TOKEN)
        self.engine.add_client(CLIENT, 0.0)

    def take(self, message: Any) -> None:
        match message:
            case Hello():
                self._outcomes["hellos refused" if check_hello(message) else "hellos accepted"] += 1
            case EngineCoreRequest():
                refused = self.engine.add_request(CLIENT, message, 0.0)
                self._outcomes["requests refused" if refused else "requests accepted"] += 1
            case AbortRequests():
                self.engine.abort(CLIENT, message, 0.0)
            case OutputsReceived(frames=frames):
                self.engine.outputs_received(CLIENT, frames)
            case ModelRunnerOutput():
                self._answer(message)

    def _answer(self, message: ModelRunnerOutput) -> None:
        """Apply the message as the answer to a step with as many prompts as it has tokens, at least one."""
        engine = EngineCore(CONFIG, EVERY_TOKEN)
        engine.add_client(CLIENT, 0.0)
        params = SamplingParams(max_tokens=4, logprobs=1, prompt_logprobs=1)
        for number in range(max(1, len(message.token_ids) // 4)):
            engine.add_request(CLIENT, EngineCoreRequest(number, pack_ids(range(1, 9)), params), 0.0)
        plan = engine.plan(0.0)
        assert plan is not None
        try:
            engine.apply(msgspec.structs.replace(message, epoch=0, step=plan.step), 0.0)
        except ProtocolError:
            self._outcomes["answers refused"] += 1
        else:
            self._outcomes["answers accepted"] += 1
        check_invariants(engine)

    def end(self) -> None:
        check_invariants(self.engine)
        self.engine.remove_client(CLIENT, 0.0)
        check_invariants(self.engine)


def samples(links: list[str], rng: random.Random) -> list[bytes]:
    """Valid frames of every message of these links."""
    types = [cls for link in links for cls in get_args(UNIONS[link])]
    return [msgspec.msgpack.encode(struct_of(cls, rng)) for cls in types for _ in range(SAMPLES_OF_EACH)]


def counting(decode: Callable[[bytes], Any], refused: Counter[str]) -> Callable[[bytes], Any]:
    """`decode`, with its errors counted and raised again."""

    def decode_and_count(frame: bytes) -> Any:
        try:
            return decode(frame)
        except Exception as error:
            refused[type(error).__name__] += 1
            raise

    return decode_and_count


def fuzz_link(link: str, mutator: FrameMutator, count: int, outcomes: Outcomes) -> None:
    union = UNIONS[link]
    codec: _Codec[Any, Any] = _Codec(union, MAX_STEP_FRAME_BYTES)
    codec._decode = counting(codec._decode, outcomes.refused)
    encode, decode_again = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(union).decode
    for start in range(0, count, BATCH_FRAMES):
        behind = Behind(outcomes.behind)
        for frame in mutator.mutate(min(BATCH_FRAMES, count - start)):
            try:
                message = codec.decode([frame])
                if message is not None:
                    outcomes.valid += 1
                    assert decode_again(encode(message)) == message, "encoding and decoding change the message"
                    behind.take(message)
            except BaseException as error:
                error.add_note(f"{link}: {frame!r}")
                raise
        behind.end()
    outcomes.frames += count


def fuzz_round(seed: int, count: int = ROUND_FRAMES) -> Outcomes:
    """About `count` frames over all links; the same seed damages the same frames in the same way."""
    logging.getLogger("paged_serve.protocol.transport.channel").setLevel(logging.ERROR)  # it logs refused frames
    rng, outcomes = random.Random(seed), Outcomes()
    donors = samples(list(UNIONS), rng)
    share = -(-count // len(UNIONS) // VARIANTS) * VARIANTS
    for number, link in enumerate(UNIONS):
        mutator = FrameMutator(samples([link], rng), donors, seed * len(UNIONS) + number)
        fuzz_link(link, mutator, share, outcomes)
    assert outcomes.valid + sum(outcomes.refused.values()) == outcomes.frames
    return outcomes

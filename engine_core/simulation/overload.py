"""An overloaded engine in virtual time: compares forecasts with measured waits and counts each tenant's share.

No worker computes anything: the duration of a step follows from its tokens, and the length of every output is drawn in
advance. A simulated minute takes seconds of real time, and the same seed gives the same figures on every machine.
"""

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from paged_serve.protocol.messages.config import Config, SchedulerConfig, SpeculationConfig
from paged_serve.protocol.messages.engine_core import (
    EngineCoreOutputs,
    EngineCoreRequest,
    RejectReason,
    RequestRejected,
)
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import ModelRunnerOutput, SchedulerOutput

from ..admission.validation import ModelFacts
from ..engine.debug import check_invariants
from ..engine.engine import EngineCore
from ..engine.outputs import Outgoing
from ..requests.request import Sequence

CLIENT = b"client:0"
EOS = 0
ID_BYTES = 4  # of a packed token id
# Prompts are parts of one text: to draw each of their tokens took a quarter of the time.
TEXT = pack_ids(random.Random(0).choices(range(1, 1000), k=1 << 16))


@dataclass(frozen=True, slots=True)
class Source:
    """Sends `per_s` requests per second on average, starting at `begins_s`."""

    tenant: str
    per_s: float
    weight: float = 1.0
    ttl_s: float = 0.0
    prompt: tuple[int, int] = (8, 200)  # range of the length in tokens
    allowed: tuple[int, int] = (20, 200)  # range of max_tokens; the length of an output is drawn from 1 to max_tokens
    begins_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """The duration of a step in seconds; by default 64 rows decode at 2,500 tokens per second."""

    step_s: float = 0.0064
    prompt_token_s: float = 0.0002
    row_s: float = 0.0003

    def of(self, prompt_tokens: int, rows: int) -> float:
        return self.step_s + prompt_tokens * self.prompt_token_s + rows * self.row_s


@dataclass(slots=True)
class SentRequest:
    """One request, with its forecast and its result."""

    source: Source
    at_s: float
    output_len: int
    forecast_s: float = 0.0
    first_token_s: float | None = None  # since it was sent
    rejected: RequestRejected | None = None
    rejected_s: float = 0.0  # since it was sent


@dataclass(slots=True)
class Overload:
    """`run` fills `sent`, and `tokens`, the number of output tokens that each tenant received."""

    seed: int
    sources: tuple[Source, ...]
    step_time: StepTime = field(default_factory=StepTime)
    max_num_seqs: int = 64
    max_num_queued_requests: int = 100
    max_model_len: int = 1024
    checks: bool = False
    now: float = 0.0
    sent: dict[int, SentRequest] = field(default_factory=dict)  # by request id
    tokens: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    engine: EngineCore = field(init=False)
    _rng: random.Random = field(init=False)
    _arrivals: list[tuple[float, int]] = field(default_factory=list)  # the next arrival of each source: time, index
    _plans: deque[SchedulerOutput] = field(default_factory=deque)

    def __post_init__(self) -> None:
        config = Config(
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=1024,
                max_num_queued_requests=self.max_num_queued_requests,
            ),
            speculation=SpeculationConfig("off"),
        )
        self._rng = random.Random(self.seed)
        self.engine = EngineCore(
            config, ModelFacts(64 * self.max_num_seqs, 16, self.max_model_len, 1000, frozenset({EOS}))
        )
        self.engine.add_client(CLIENT, 0.0)
        self._arrivals = [(source.begins_s, index) for index, source in enumerate(self.sources)]

    def run(self, seconds: float) -> "Overload":
        """Requests arrive for `seconds`; the accepted ones are then finished."""
        while self._advance(seconds):
            if self.checks:
                check_invariants(self.engine)
        return self

    def _advance(self, seconds: float) -> bool:
        """Advance to the next event, the end of a step or an arrival; False when there is none."""
        engine = self.engine
        while (plan := engine.plan(self.now)) is not None:
            self._plans.append(plan)
        due, index = min(self._arrivals)
        if self._plans:
            answer = self._execute(self._plans[0])
            ends = self.now + answer.step_s
            while due < min(ends, seconds):
                self._send(due, index)
                due, index = min(self._arrivals)
            self._plans.popleft()
            self.now = ends
            self._receive(engine.expire(self.now))
            self._receive(engine.apply(answer, self.now))
            return True
        if due >= seconds:
            return False
        self.now = due
        self._send(due, index)
        return True

    def _send(self, at_s: float, index: int) -> None:
        rng, source = self._rng, self.sources[index]
        self._arrivals[index] = (at_s + rng.expovariate(source.per_s), index)
        request_id, allowed = len(self.sent) + 1, rng.randint(*source.allowed)
        request = self.sent[request_id] = SentRequest(source, at_s, rng.randint(1, allowed))
        prompt_len = rng.randint(*source.prompt)
        begin = ID_BYTES * rng.randrange(len(TEXT) // ID_BYTES - prompt_len)
        prompt = TEXT[begin : begin + ID_BYTES * prompt_len]
        message = EngineCoreRequest(
            request_id,
            prompt,
            SamplingParams(max_tokens=allowed),
            tenant=source.tenant,
            weight=source.weight,
            ttl_s=source.ttl_s,
        )
        tenant = self.engine.scheduler.shares.of(source.tenant, source.weight)
        request.forecast_s = self.engine.admission.forecast.first_token_s(tenant, prompt_len)
        self._receive(self.engine.add_request(CLIENT, message, at_s))

    def _execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Answers first the decode set, then the chunks that sample a token, as a worker does."""
        step = next(step for step in self.engine.scheduler.in_flight if step.step == plan.step)
        decode, advance = step.decode, plan.step - step.decode.origin
        tokens = [
            self._token(sequence, first + advance)
            for sequence, first in zip(decode.sequences, decode.first_positions, strict=True)
        ]
        tokens += [self._token(chunk.sequence, len(chunk.sequence.output)) for chunk in step.chunks if chunk.samples]
        seconds = self.step_time.of(step.num_tokens - len(step.decode), len(step.decode))
        return ModelRunnerOutput(plan.epoch, plan.step, pack_ids(tokens), seconds)

    def _token(self, sequence: Sequence, position: int) -> int:
        return EOS if position + 1 >= self.sent[sequence.request.request_id].output_len else 7

    def _receive(self, outgoing: Outgoing) -> None:
        for _, message in outgoing:
            if isinstance(message, RequestRejected):
                request = self.sent[message.request_id]
                request.rejected, request.rejected_s = message, self.now - request.at_s
                continue
            assert isinstance(message, EngineCoreOutputs)
            for output in message.outputs:
                request = self.sent[output.stream_id]
                if request.first_token_s is None:
                    request.first_token_s = self.now - request.at_s
                if output.finish_reason is not None:
                    self.tokens[request.source.tenant] += output.position + len(output.token_ids) // ID_BYTES
            self._receive(self.engine.outputs_received(CLIENT, 1))

    def rejected(self, reason: RejectReason) -> list[SentRequest]:
        return [
            request
            for request in self.sent.values()
            if request.rejected is not None and request.rejected.reason is reason
        ]

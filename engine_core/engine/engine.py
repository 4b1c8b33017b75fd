"""The engine core, sans-I/O: messages and the time are its inputs, messages its outputs. The file to read first.

`plan` returns the next step for the workers, up to `pipeline_depth` steps ahead of `apply`, which takes their answers.
Every method that may produce messages returns them as (client, message) pairs, in the order to send.
"""

import logging

from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.kv_events.messages import MEDIUM_CPU, MEDIUM_STORAGE
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest
from paged_serve.protocol.messages.loading.adapters import AdapterLoaded, LoadAdapter
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.stats import SchedulerStats
from paged_serve.protocol.messages.worker import ModelRunnerOutput, SchedulerOutput

from ..admission.admission import Admission, Admitted
from ..admission.deadlines import expiry
from ..admission.validation import ModelFacts
from ..drafting.policies import policy_of
from ..kv.kv_cache import KVCache
from ..kv.kv_events import KVEvents
from ..kv.kv_group import KVGroups
from ..requests.request import Sequence
from ..requests.stopping import finish_reason
from ..scheduling.scheduler import Scheduler
from ..scheduling.scheduler_output import plan_message
from .clients.client_outbox import ClientOutbox
from .clients.paused_clients import PausedClients
from .clients.unacknowledged import UnacknowledgedBudget
from .endings import DEADLY, DEADLY_ADAPTER, Endings
from .outputs import Outgoing, StreamOutput, reused_outputs, step_outputs
from .results import StepResults
from .stats import STATS_INTERVAL_S, StepCounters
from .step_results import apply_results

log = logging.getLogger(__name__)

CLIENT_LEASE_S = 10.0


class EngineCore:
    """Runs all requests from admission to their end. `epoch` identifies this incarnation of the engine to clients."""

    def __init__(self, config: Config, facts: ModelFacts, epoch: int = 0):
        self.config = config
        self.facts = facts
        self.epoch = epoch
        self.worker_epoch = 0
        self.num_poison_requests = 0  # requests that were found to kill workers
        rows, max_chunk = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
        groups = KVGroups.of(facts.kv_groups, facts.block_size, max_chunk)
        is_causal = not facts.pooling.is_bidirectional
        events = KVEvents(facts.block_size) if config.kv_events.endpoint else None
        self.kv_cache = KVCache(facts.num_blocks, groups, config.cache.enable_prefix_caching and is_causal, events)
        policy, loras = policy_of(config.speculation, facts.device), config.lora.max_loras
        self.scheduler = Scheduler(
            self.kv_cache, rows, max_chunk, cuts_prompts=is_causal, draft_policy=policy, max_loras=loras
        )
        self.counters = StepCounters()
        self.clients: dict[bytes, ClientOutbox] = {}
        self.unacknowledged = UnacknowledgedBudget(config.scheduler.max_unacknowledged_bytes)
        self.paused_clients = PausedClients(self.unacknowledged, self.clients, self.scheduler.waiting)
        self._last_apply_s: float | None = None  # while steps follow each other without a gap
        self.admission = Admission(config, facts, self.kv_cache, self.scheduler, self.scheduler.worker_poison)
        self.endings = Endings(self.clients, self.scheduler, self.admission)
        if config.kv_tier.is_on:
            medium = MEDIUM_STORAGE if config.kv_tier.dir else MEDIUM_CPU
            self.kv_cache.open_tiers(config.parallel.tensor_parallel_size, facts.kv_bytes_per_block, medium)
            self.scheduler.loading.prompt_token_s = self.admission.forecast.prompt_token_s
        if epoch:
            self.admission.resumptions.start_after_core()

    @property
    def is_idle(self) -> bool:
        return self.scheduler.num_live == 0 and not self.scheduler.in_flight

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to compute or to send; a client that stops reading loses its lease."""
        return (
            self.is_idle
            and self.admission.core_poison.is_over
            and not any(outbox.is_behind for outbox in self.clients.values())
        )

    # Clients

    def add_client(self, client: bytes, now: float) -> None:
        self.clients.setdefault(client, ClientOutbox(self.epoch, now, self.unacknowledged))

    def renew_lease(self, client: bytes, now: float) -> None:
        self.clients[client].heard_s = now

    def remove_client(self, client: bytes, now: float) -> None:
        """End all requests of a client that is gone; their outputs are kept for a time for equal requests."""
        outbox = self.clients.pop(client, None)
        sequences = [] if outbox is None else list(outbox.streams.values())
        self.admission.client_removed(client, list(dict.fromkeys(sequence.request for sequence in sequences)), now)
        if outbox is not None:
            self.scheduler.finish(sequences)
            self.endings.remove_deadlines(sequences)
            outbox.close()
            self.scheduler.waiting.resume(client)
            self.paused_clients.resume_where_due()

    def extend_leases(self, seconds: float) -> None:
        """Extend all leases, and an isolation turn, by a time in which the core itself did not read messages."""
        self.admission.core_poison.extend_turn(seconds)
        for outbox in self.clients.values():
            outbox.heard_s += seconds

    def expired_clients(self, now: float) -> list[bytes]:
        """Clients whose lease has ended; the caller removes them."""
        return [client for client, outbox in self.clients.items() if now - outbox.heard_s > CLIENT_LEASE_S]

    def outputs_received(self, client: bytes, frames: int) -> Outgoing:
        """Return credit and bytes; the client is sent the outputs it missed, and its sequences may run again."""
        messages = self.clients[client].acknowledge(frames, self.scheduler.step)
        self.paused_clients.resume_where_due()
        return [(client, message) for message in messages]

    # Requests

    def add_request(self, client: bytes, message: EngineCoreRequest, now: float) -> Outgoing:
        """Queue a request, or reject it as a whole."""
        outbox = self.clients[client]
        answer = self.admission.admit(client, message, outbox, now)
        if not isinstance(answer, Admitted):
            return [*answer]
        ended: dict[Sequence, FinishReason] = {}
        for sequence in answer.request.sequences:
            outbox.streams[sequence.stream_id] = sequence
            self.scheduler.add(sequence)
            if sequence.output and (reason := finish_reason(sequence)) is not None:
                ended[sequence] = reason  # its last token was delivered before the restart, its end was not
        self.admission.core_poison.isolate(answer.request, answer.message)
        reused = outbox.deliver(self.scheduler.step, None, reused_outputs(answer.request)) if answer.is_reused else []
        return [*((client, outputs) for outputs in reused), *self.endings.end_early(client, ended, now)]

    def abort(self, client: bytes, message: AbortRequests, now: float) -> Outgoing:
        """End streams of this client. Streams that have ended are ignored: abort races with finish."""
        self.admission.core_poison.aborted(client, message, now)
        streams = self.clients[client].streams
        sequences = [streams[stream_id] for stream_id in message.stream_ids if stream_id in streams]
        return self.endings.end_early(client, dict.fromkeys(sequences, message.finish_reason), now)

    @property
    def next_deadline_s(self) -> float:
        """The time of the next call of `expire`; infinity: never."""
        return self.admission.deadlines.next_s

    def expire(self, now: float) -> Outgoing:
        """Reject the requests that have exceeded their time limit before any of their tokens was computed."""
        outgoing: Outgoing = []
        for request in self.admission.deadlines.take_expired(now):
            self.endings.remove(request)
            outgoing.append((request.client, expiry(request, now, self.scheduler.num_waiting)))
        return outgoing

    # Steps

    def stats(self, now: float) -> SchedulerStats:
        """The current statistics; waits are predicted at most once per STATS_INTERVAL_S, for all clients."""
        return self.counters.snapshot(self.scheduler, self.admission.capacity.waits, now)

    def plan(self, now: float) -> SchedulerOutput | None:
        """The next step, or None when there is nothing to compute or enough is in flight already."""
        if len(self.scheduler.in_flight) >= self.config.scheduler.pipeline_depth:
            return None
        if (plan := self.scheduler.schedule()) is None:
            return None
        if plan.admitted:
            self.counters.admitted(plan.admitted)
            for sequence in plan.admitted:
                self.admission.forecast.admitted(sequence)
                self.admission.deadlines.remove(sequence.request)
                sequence.scheduled_s = now if sequence.scheduled_s is None else sequence.scheduled_s
        return plan_message(plan, self.worker_epoch)

    def apply(self, output: ModelRunnerOutput, now: float) -> Outgoing:
        """Apply the answer to the oldest step in flight. An answer from a former worker group is dropped.

        Raises ProtocolError if it answers another step or does not match the plan: the workers must be replaced.
        """
        if output.epoch != self.worker_epoch:
            return []
        in_flight = self.scheduler.in_flight
        if not in_flight or in_flight[0].step != output.step:
            raise ProtocolError(
                f"an answer to step {output.step} arrived; {[plan.step for plan in in_flight]} are in flight"
            )
        plan = in_flight[0]
        results = apply_results(plan, output, self.kv_cache)
        in_flight.popleft()
        self.scheduler.speculation.applied(plan, output.step_s)
        self.counters.applied(plan, results.num_tokens, output.step_s)
        step_s = output.step_s if self._last_apply_s is None else now - self._last_apply_s
        self.admission.forecast.step(plan.num_prompt_tokens, plan.num_generating, plan.num_generated, step_s, now)
        self._last_apply_s = now if in_flight else None
        outputs = step_outputs(results, now)
        self.endings.end(list(results.ended))
        for sequence in results.not_finite:
            self.endings.recompute_or_fail(sequence, outputs, now)
        refused = self.endings.end_failed(results, outputs, now)
        return [*self._deliver(plan.step, results, outputs, now), *refused]

    def take_loads(self) -> list[LoadAdapter]:
        """The adapters that all ranks must load now; called before `plan`."""
        scheduler, waiting = self.scheduler, self.scheduler.waiting
        candidate = scheduler.worker_poison.first()
        if not waiting.adapters.uses or (candidate is None and scheduler.worker_poison.is_closed):
            return []
        oldest = scheduler.in_flight[0].step if scheduler.in_flight else None
        return waiting.take_loads(candidate, scheduler.step, oldest, has_rows=bool(scheduler.running))

    def adapter_loaded(self, message: AdapterLoaded, num_ranks: int, now: float) -> Outgoing:
        """Apply a rank's answer to LoadAdapter. Raises ProtocolError if it answers nothing that was sent."""
        use = self.scheduler.waiting.adapters.loaded(message, num_ranks)
        if use is None:
            return []
        if use.error:
            log.warning("adapter refused name=%r reason=%s", use.adapter.name, use.error)
            return self.endings.end_held(use, use.error, now)
        self.scheduler.waiting.release(use)
        return []

    def workers_replaced(self, worker_epoch: int, now: float, *, from_outside: bool) -> Outgoing:
        """A new worker group starts with empty caches: all running sequences are queued again, with their output.

        `from_outside`: no request caused the end of the previous group.
        """
        self.worker_epoch = worker_epoch
        scheduler = self.scheduler
        poison = None if from_outside else scheduler.worker_poison.count_death(scheduler.in_flight)
        deadly = scheduler.waiting.workers_lost(from_outside=from_outside)
        scheduler.restart()
        self._last_apply_s = None
        outgoing = [each for use in deadly for each in self.endings.end_held(use, DEADLY_ADAPTER, now)]
        if poison is None:
            return outgoing
        log.error("stream=%d ends: workers died whenever they computed it", poison.stream_id)
        self.num_poison_requests += 1
        return [*outgoing, *self.endings.end_early(poison.request.client, {poison: FinishReason.ERROR}, now, DEADLY)]

    # Outputs

    def _deliver(
        self, step: int, results: StepResults, outputs: dict[bytes, list[StreamOutput]], now: float
    ) -> Outgoing:
        columns = results.plain.columns(step, results.plain_tokens)
        outgoing: Outgoing = []
        for client in dict.fromkeys((*columns, *outputs)):
            outbox = self.clients[client]
            stats = None
            if now - outbox.stats_sent_s >= STATS_INTERVAL_S:
                stats, outbox.stats_sent_s = self.stats(now), now
            messages = outbox.deliver(step, columns.get(client), outputs.get(client, []), stats)
            outgoing += [(client, message) for message in messages]
        self.paused_clients.pause_where_due()
        return outgoing

"""Predicts how long a new request will wait, from the recent speed of the engine. Sans-I/O; the caller passes the time.

The model is one server with a cost in seconds for each prompt token and each output token, estimated from the last
steps. The work ahead of a request is everything queued before it, plus the remaining output of running requests beyond
half of their outputs, which is the mean remainder if ends are spread evenly.
"""

from collections.abc import Sequence as Items
from typing import NamedTuple

from ..requests.request import Request, Sequence
from ..requests.tenant import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST, Tenant
from .backlog import Backlog

KEEP_STEP = 0.98  # a step counts half after 34 more
KEEP_SEQUENCE = 0.95  # an ended sequence counts half after 14 more
SAME_SIZE = 1e-4  # steps that differ by less than this fraction do not separate the two costs
MAX_OBSERVED_STEPS = 256  # steps
ROUNDS = 8  # of the iteration over the requests that arrive during the wait itself


class StepPace:
    """The cost of a step in seconds: a constant, plus one term per prompt token and one per output token.

    Fitted by least squares over the last steps, with exponential decay. Steps of one size do not separate the three
    terms; the cost is then spread over them, and the price of a step of that size is still right.
    """

    def __init__(self) -> None:
        self._products = [[0.0] * 4 for _ in range(3)]  # of (1, prompt, output tokens) with itself and the seconds
        self._rows = 0.0  # that decoded or verified, a decaying sum; verifications may yield several tokens
        self._prices: tuple[float, float, float] | None = None  # of the steps so far
        self._new: list[tuple[int, int, int, float]] = []

    def observe(self, prompt_tokens: int, rows: int, output_tokens: int, seconds: float) -> None:
        """Record one step; the sums are updated only when prices are requested."""
        self._new.append((prompt_tokens, rows, output_tokens, seconds))
        if len(self._new) == MAX_OBSERVED_STEPS:
            self._add_new()

    def _add_new(self) -> None:
        for prompt_tokens, rows, output_tokens, seconds in self._new:
            self._rows = KEEP_STEP * self._rows + rows
            self._add(prompt_tokens, output_tokens, seconds)
        self._new.clear()
        self._prices = None

    def _add(self, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        for row, factor in zip(self._products, (1.0, prompt_tokens, output_tokens), strict=True):
            row[0] = KEEP_STEP * row[0] + factor
            row[1] = KEEP_STEP * row[1] + factor * prompt_tokens
            row[2] = KEEP_STEP * row[2] + factor * output_tokens
            row[3] = KEEP_STEP * row[3] + factor * seconds

    def prices(self, rows: int) -> tuple[float, float]:
        """Seconds per prompt token, and per output token when `rows` rows decode or verify together."""
        if self._new:
            self._add_new()
        if self._prices is None:
            self._prices = self._solve((0, 1, 2)) or self._solve((0, 1)) or self._solve((0,)) or (0.0, 0.0, 0.0)
        step, prompt, output = self._prices
        return prompt, output + step / (max(1, rows) * self.tokens_per_row)

    @property
    def tokens_per_row(self) -> float:
        """Output tokens of a row in one step, on average; 1.0 without speculation."""
        return self._products[0][2] / self._rows if self._rows else 1.0

    def _solve(self, used: tuple[int, ...]) -> tuple[float, float, float] | None:
        """Solve for the factors in `used` by Gaussian elimination; None if a price would be negative."""
        matrix = [[self._products[i][j] for j in (*used, 3)] for i in used]
        for i, row in enumerate(matrix):
            row[i] *= 1.0 + SAME_SIZE
            if row[i] <= 0.0:
                return None
            for other in matrix[i + 1 :]:
                part = other[i] / row[i]
                other[:] = [a - part * b for a, b in zip(other, row, strict=True)]
        found = [0.0, 0.0, 0.0]
        for i, row in reversed(list(enumerate(matrix))):
            later = sum(row[j] * found[used[j]] for j in range(i + 1, len(used)))
            found[used[i]] = (row[-1] - later) / row[i]
        return None if min(found) < 0.0 else (found[0], found[1], found[2])


class Forecast:
    """Predicts waits for one backlog, from observed steps and from the lengths of ended sequences."""

    def __init__(self, backlog: Backlog):
        self._backlog = backlog
        self._pace = StepPace()
        self._used = self._allowed = 0.0  # output tokens of ended sequences, decaying sums
        self._computed = self._admitted = 0.0  # prompt tokens of admitted ones
        self._excess = 0.0  # allowed output tokens
        self._excess_step = -1  # the step of the figure above
        self._now = 0.0

    @property
    def has_data(self) -> bool:
        return self._pace.prices(1) != (0.0, 0.0)

    def step(self, prompt_tokens: int, rows: int, output_tokens: int, seconds: float, now: float) -> None:
        """Record a step, in which `rows` rows that decode or verify were given `output_tokens` tokens."""
        self._pace.observe(prompt_tokens, rows, output_tokens, seconds)
        self._now = now

    def admitted(self, sequence: Sequence) -> None:
        self._computed = KEEP_SEQUENCE * self._computed + sequence.prefill_len - sequence.num_applied
        self._admitted = KEEP_SEQUENCE * self._admitted + sequence.prefill_len

    def ended(self, sequence: Sequence) -> None:
        self._used = KEEP_SEQUENCE * self._used + len(sequence.output)
        self._allowed = KEEP_SEQUENCE * self._allowed + sequence.token_limit - sequence.request.prompt_len

    def arrived(self, request: Request, now: float) -> None:
        """Record an accepted request: its tenant is expected to send more like it."""
        first, n = request.sequences[0], len(request.sequences)
        output_tokens = self._used_share * (first.token_limit - first.num_tokens)
        request.tenant.arrivals.add(n * _cost(first.num_tokens, output_tokens), now)
        self._now = now

    def prompt_token_s(self) -> float:
        """Seconds to compute a token of a prompt; 0 when it is not known."""
        return self._pace.prices(1)[0]

    def queue_s(self, tenant: Tenant) -> float:
        """Seconds until a sequence of `tenant` arriving now would be scheduled; 0 when it need not wait."""
        return self.queue_times([tenant])[0]

    def queue_times(self, tenants: Items[Tenant]) -> list[float]:
        """`queue_s` of each of a few dozen `tenants`; each costs time linear in the number of live tenants.

        The wait grows monotonically with the service at which a tenant's turn comes, so each search starts at the
        previous result and takes a round or two.
        """
        backlog = self._backlog
        if not backlog.num_waiting and backlog.free_rows:
            return [0.0] * len(tenants)
        prompt_s, output_s = self._prices()
        live = [other for other in backlog.shares.tenants.values() if other.num_live]
        queues = {other: self._queue(other) for other in live}
        cost = sum(other.cost for other in queues.values())
        seconds = backlog.num_queued_tokens * prompt_s + output_s * sum(each.queued_output_tokens for each in live)
        cost_s, excess_s = seconds / cost if cost else 0.0, self._excess_s(output_s)
        moments: list[tuple[float, int, _Queue]] = []
        for tenant in tenants:
            own = queues.get(tenant) or self._queue(tenant)
            moments.append((own.service + own.cost / own.weight, len(moments), own))
        waits, wait_s, table = [0.0] * len(tenants), 0.0, list(queues.values())
        for moment, index, own in sorted(moments):
            wait_s = waits[index] = _until(moment, own, table, cost_s, excess_s, wait_s)
        return waits

    def _queue(self, tenant: Tenant) -> "_Queue":
        shares = self._backlog.shares
        service = shares.ordering_service(tenant)
        cost = _cost(tenant.queued_prompt_tokens, tenant.queued_output_tokens * self._used_share)
        return _Queue(tenant, service, tenant.weight, cost, tenant.arrivals.value(self._now))

    def first_token_s(self, tenant: Tenant, prompt_tokens: int) -> float:
        """Seconds until the first token of a sequence arriving now."""
        backlog, (prompt_s, output_s) = self._backlog, self._prices()
        begun = sum(sequence.prefill_len - sequence.num_scheduled for sequence in backlog.prefilling)
        row_s = output_s * self._pace.tokens_per_row
        planned = sum(plan.num_prompt_tokens * prompt_s + plan.num_generating * row_s for plan in backlog.in_flight)
        return self.queue_s(tenant) + planned + (begun + prompt_tokens) * prompt_s

    def _prices(self) -> tuple[float, float]:
        """Seconds per queued prompt token and per allowed output token, discounted by the share that is computed."""
        backlog = self._backlog
        running = len(backlog.running)
        prompt_s, output_s = self._pace.prices(max(running, min(backlog.max_num_rows, backlog.num_live)))
        computed = self._computed / self._admitted if self._admitted else 1.0
        return prompt_s * computed, output_s * self._used_share

    @property
    def _used_share(self) -> float:
        return self._used / self._allowed if self._allowed else 1.0

    def _excess_s(self, output_s: float) -> float:
        """The work in seconds that running sequences have left beyond half of their outputs."""
        backlog = self._backlog
        if self._excess_step != backlog.step:
            excess = 0.0
            for sequence in backlog.running:
                allowed = sequence.token_limit - sequence.request.prompt_len
                excess += max(0.0, allowed - len(sequence.output) / max(self._used_share, 0.01)) - allowed / 2
            self._excess, self._excess_step = excess, backlog.step
        return self._excess * output_s


class _Queue(NamedTuple):
    """The queue of one tenant; costs in units of service."""

    tenant: Tenant
    service: float
    weight: float
    cost: float
    cost_per_s: float  # of the requests that arrive


def _until(moment: float, own: _Queue, queues: list[_Queue], cost_s: float, excess_s: float, least_s: float) -> float:
    """Seconds, at least `least_s`, until `own` has been served up to `moment`, at the current arrival rates."""
    wait_s = max(least_s, own.cost * cost_s + excess_s)
    for _ in range(ROUNDS):
        before = own.cost
        for tenant, service, weight, cost, cost_per_s in queues:
            if service < moment and tenant is not own.tenant:
                served, sent = (moment - service) * weight, cost + cost_per_s * wait_s
                before += served if served < sent else sent
        last_s, wait_s = wait_s, max(least_s, before * cost_s + excess_s)
        if wait_s - last_s < 0.02 * wait_s:
            break
    return wait_s


def _cost(prompt_tokens: float, output_tokens: float) -> float:
    return prompt_tokens * PROMPT_TOKEN_COST + output_tokens * OUTPUT_TOKEN_COST

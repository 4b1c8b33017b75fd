"""The memory budget of a frontend is never exceeded; the largest entry ends first, and the others continue."""

import contextlib
import random

import pytest

from paged_serve.frontend.buffer_budget import BufferBudget
from paged_serve.frontend.http.connections.connection_buffers import ConnectionBuffers
from paged_serve.protocol.errors import InvalidRequest, Overloaded

MAX_BYTES = 32_000


class Waiting:
    """A pool of entries that can be ended, the largest first."""

    def __init__(self):
        self.entries: list[int] = []

    @property
    def num_bytes(self):
        return sum(self.entries)

    def shed(self, num_bytes):
        enough = self.num_bytes - num_bytes
        while self.num_bytes > enough and self.entries:
            self.entries.remove(max(self.entries))


def test_a_lease_is_refused_before_the_budget_is_exceeded_and_stays_as_it_was():
    budget = BufferBudget(MAX_BYTES)
    leases = [budget.lease() for _ in range(3)]
    for lease in leases[:2]:
        lease.resize(8_000)
    with pytest.raises(Overloaded, match="--max-buffered-bytes=32000") as refused:
        leases[2].resize(1)
    assert refused.value.retry_after_s > 0
    assert (leases[2].num_bytes, budget.num_bytes) == (0, 16_000)
    leases[0].close()
    leases[2].resize(8_000)
    with pytest.raises(InvalidRequest, match="one request may take 8000"):  # it would never fit
        leases[2].grow(1)
    with pytest.raises(InvalidRequest, match="This answer needs 9000 bytes"):
        leases[2].check(9_000, "This answer")
    for lease in leases:
        lease.close()
    assert budget.num_bytes == 0


def test_one_of_several_tenants_does_not_get_the_whole_budget():
    budget = BufferBudget(MAX_BYTES, has_tenants=True)
    greedy, modest = [budget.lease("greedy") for _ in range(2)], budget.lease("modest")
    greedy[0].resize(8_000)
    with pytest.raises(Overloaded):
        greedy[1].resize(4_001)
    greedy[1].resize(4_000)
    modest.resize(4_000)


def test_a_pool_shrinks_to_its_guaranteed_share_and_its_largest_entry_ends_first():
    budget, pool = BufferBudget(MAX_BYTES), Waiting()
    budget.pools.append(pool)
    pool.entries = [100] * 40 + [12_000, 12_000]
    with budget.lease() as lease:
        lease.resize(8_000)
        assert pool.entries == [100] * 40 + [12_000]
        assert budget.num_bytes <= MAX_BYTES
    pool.entries = [100] * 40
    assert budget.has_room(28_000)
    assert not budget.has_room(28_001)  # the pool has only its guaranteed share
    assert pool.entries == [100] * 40


def test_unsolicited_outputs_have_a_reserved_share():
    budget = BufferBudget(MAX_BYTES)
    budget.outputs = Waiting()
    assert not budget.has_room(28_001)
    budget.outputs.entries = [5_000] * 10
    budget.outputs_arrived()
    assert budget.num_bytes <= MAX_BYTES


class Sender:
    """A connection."""

    def __init__(self):
        self.ended = False

    def shed(self):
        self.ended = True


def test_incomplete_bodies_that_held_most_for_longest_end_first():
    now = 0.0
    budget = BufferBudget(MAX_BYTES)
    buffers = ConnectionBuffers(budget, lambda: now)
    stalled, small, newcomer = [Sender() for _ in range(3)], Sender(), Sender()
    for sender in stalled:
        assert buffers.hold(sender, 10_000)
    assert buffers.hold(small, 50)
    now = 10.0
    assert buffers.hold(newcomer, 4_000)
    assert [sender.ended for sender in stalled] == [True, False, False]
    assert not small.ended
    assert not newcomer.ended
    assert buffers.num_bytes == 24_050
    for sender in (*stalled, small, newcomer):
        buffers.hold(sender, 0)
    assert buffers.num_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_sequence_of_leases_exceeds_the_budget(seed):
    rng, budget = random.Random(seed), BufferBudget(MAX_BYTES, has_tenants=bool(seed % 2))
    pools = [Waiting(), Waiting()]
    budget.pools += [pools[0]]
    budget.outputs = pools[1]
    buffers = ConnectionBuffers(budget, lambda: rng.random())
    leases = [budget.lease(rng.choice(["a", "b"])) for _ in range(10)]
    senders = [Sender() for _ in range(10)]
    for _ in range(500):
        size = rng.choice([10, 500, 3_000])
        match rng.randrange(4):
            case 0:
                with contextlib.suppress(Overloaded, InvalidRequest):
                    rng.choice(leases).resize(rng.choice([0, size, 3 * size]))
            case 1:
                buffers.hold(rng.choice(senders), rng.choice([0, size]))
            case 2:
                if budget.has_room(size):
                    pools[0].entries.append(size)
            case 3:
                pools[1].entries.append(size)
                budget.outputs_arrived()
        assert budget.num_bytes <= MAX_BYTES
        assert budget.num_leased == sum(lease.num_bytes for lease in leases)

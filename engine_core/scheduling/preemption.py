"""Chooses the sequences to preempt for the first one in the queue, and the rows to reserve.

Two kinds may be preempted for it: the latest of tenants that are ahead, if its own is not; and those that were admitted
past it while it did not fit. None is preempted unless all of them together make enough room. What is preempted keeps
its output, and the prefix cache what was computed while there is room; reserved rows make preemption seldom.
"""

import math
from collections.abc import Collection

from ..kv.kv_cache import KVCache
from ..requests.order import order_of
from ..requests.request import Sequence
from .fair_share import FairShares
from .waiting_queue import WaitingQueue, goes_on

ROWS_PER_RESERVED = 8  # an eighth of the rows at most
MISS_SHARE = 0.1  # of the arrivals may find the reserve used up
MIN_ARRIVALS_PER_ROW = 0.01  # fewer are no need
MAX_YIELDED = 8  # preemptions of a sequence in favour of others, so that each ends


def reserve_rows(arrivals_per_row: float, num_rows: int) -> int:
    """Rows to keep free for tenants with `arrivals_per_row` arriving sequences per returned row.

    A reserve of r rows, refilled one by one, is empty for a share arrivals_per_row ** r of the arrivals.
    """
    most = num_rows // ROWS_PER_RESERVED
    if arrivals_per_row < MIN_ARRIVALS_PER_ROW or not most:
        return 0
    if arrivals_per_row >= 1.0:
        return most
    return min(most, math.ceil(math.log(MISS_SHARE) / math.log(arrivals_per_row)))


def is_row_reserved(
    sequence: Sequence, num_free: int, num_rows: int, waiting: WaitingQueue, shares: FairShares
) -> bool:
    """Whether the last free rows are withheld from `sequence`: it is new, and no waiting tenant is entitled to them."""
    if num_free > num_rows // ROWS_PER_RESERVED or goes_on(sequence):
        return False
    if not all(shares.is_ahead(tenant) for tenant in waiting.tenants):
        return False
    return num_free <= reserve_rows(shares.arrivals_per_row(waiting.tenants), num_rows)


def choose_victims(
    sequence: Sequence,
    running: Collection[Sequence],
    just_admitted: Collection[Sequence],
    shares: FairShares,
    kv_cache: KVCache,
) -> list[Sequence]:
    """The fewest victims that make room for `sequence`, latest first; none if all candidates together do not suffice.

    Only blocks with one owner count: a block that two victims share may have a third owner.
    """
    candidates = _candidates(sequence, running, just_admitted, shares)
    if not candidates:
        return []
    num_groups = kv_cache.num_groups
    num_missing, shared = kv_cache.shortage(sequence, sequence.request.sharer, num_groups * len(running))
    if num_missing > sum(kv_cache.num_held(victim) + num_groups for victim in candidates):
        return []  # skips the per-block check
    victims: list[Sequence] = []
    for victim in candidates:
        victims.append(victim)
        num_missing -= kv_cache.num_owned_alone(victim, shared) + num_groups  # its part of the watermark
        if num_missing <= 0:
            return victims
    return []


def _candidates(
    sequence: Sequence, running: Collection[Sequence], just_admitted: Collection[Sequence], shares: FairShares
) -> list[Sequence]:
    """The sequences that may be preempted for `sequence`, in the order of preemption."""
    ahead = shares.tenants_ahead()
    if sequence.request.tenant in ahead:
        ahead = set()
    if not ahead and not sequence.num_passed:
        return []
    may = [
        each
        for each in running
        if (each.request.tenant in ahead or each.passed is sequence)
        and each.num_yielded < MAX_YIELDED
        and each.order[0] >= sequence.order[0]
        and each not in just_admitted
    ]
    may.sort(key=lambda each: (each.passed is sequence, each.request.tenant.service, order_of(each)), reverse=True)
    return may

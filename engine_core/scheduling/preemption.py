"""Chooses the sequences to preempt for the first one in the queue, and the rows to reserve.

Two kinds of sequences may be preempted for it: sequences of tenants that are ahead, the latest first, if its own tenant
is not ahead; and sequences that were admitted past it while it did not fit. Sequences are preempted only if together
they make enough room. They keep their output, and their blocks stay in the prefix cache while there is room. Reserved
rows make preemption rare.
"""

import math
from collections.abc import Collection

from ..kv.kv_cache import KVCache
from ..requests.order import order_of
from ..requests.request import Sequence
from .fair_share import FairShares
from .waiting_queue import WaitingQueue, has_precedence

ROWS_PER_RESERVED = 8  # at most an eighth of the rows is reserved
MISS_SHARE = 0.1  # share of the arrivals that may find no reserved row
MIN_ARRIVALS_PER_ROW = 0.01  # below it, no row is reserved
MAX_YIELDED = 8  # preemptions of a sequence in favour of others; the limit lets every sequence end


def reserve_rows(arrivals_per_row: float, num_rows: int) -> int:
    """Rows to keep free for tenants with `arrivals_per_row` arriving sequences per returned row.

    If a reserve of r rows is refilled one by one, a fraction arrivals_per_row ** r of the arrivals finds it empty.
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
    if num_free > num_rows // ROWS_PER_RESERVED or has_precedence(sequence):
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
    """The fewest victims that make room for `sequence`, latest first; none if all of them together do not suffice.

    Only blocks with one owner count: a block that two victims share may have a third owner. What `sequence` shares with
    a running sibling is missing once that is a victim, unless the prefix cache finds it.
    """
    preemptible = _preemptible(sequence, running, just_admitted, shares)
    if not preemptible:
        return []
    num_groups, request = kv_cache.num_groups, sequence.request
    sharer, watermark = request.sharer, num_groups * len(running)
    num_missing, shared = kv_cache.shortage(sequence, sharer, watermark)
    if num_missing > sum(kv_cache.num_owned(victim) + num_groups for victim in preemptible):
        return []  # skips the per-block check
    victims: list[Sequence] = []
    for victim in preemptible:
        victims.append(victim)
        added = [victim]
        if victim is sharer:
            sharer, added = request.sharer_besides(victims), victims
            num_missing, shared = kv_cache.shortage(sequence, sharer, watermark)
        # a victim also returns its part of the watermark
        num_missing -= sum(kv_cache.num_owned_alone(each, shared) + num_groups for each in added)
        if num_missing <= 0:
            return victims
    return []


def _preemptible(
    sequence: Sequence, running: Collection[Sequence], just_admitted: Collection[Sequence], shares: FairShares
) -> list[Sequence]:
    """The sequences that may be preempted for `sequence`, in the order of preemption."""
    ahead = shares.tenants_ahead()
    if sequence.request.tenant in ahead:
        ahead = set()
    if not ahead and not sequence.num_passed:
        return []
    preemptible = [
        each
        for each in running
        if (each.request.tenant in ahead or each.passed is sequence)
        and each.num_yielded < MAX_YIELDED
        and each.order[0] >= sequence.order[0]
        and each not in just_admitted
    ]
    preemptible.sort(
        key=lambda each: (each.passed is sequence, each.request.tenant.service, order_of(each)), reverse=True
    )
    return preemptible

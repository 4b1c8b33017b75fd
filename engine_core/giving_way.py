"""What tenants that are ahead leave to the others: an eighth of the rows, and, if that is not enough, more.

The latest of the tenant that is furthest ahead gives its row and blocks back. It keeps its output, and the prefix cache
what it has computed while there is room, so little is computed twice; the rows left free make that seldom.
"""

from collections.abc import Collection

from .fair_share import FairShares
from .ordered import order_of
from .request import Sequence
from .waiting_queue import WaitingQueue, goes_on

ROWS_PER_SPARE = 8
MAX_GIVEN_WAY = 8  # times in a sequence's life, so that everybody ends


def must_leave_rows(
    newcomer: Sequence, num_free: int, num_rows: int, waiting: WaitingQueue, shares: FairShares
) -> bool:
    """Whether the last free rows are not for `newcomer`, the first in the queue, nor for anybody else in it."""
    if num_free > num_rows // ROWS_PER_SPARE or goes_on(newcomer):
        return False
    return all(shares.is_ahead(tenant) for tenant in waiting.tenants)


def who_gives_way(
    newcomer: Sequence, running: Collection[Sequence], just_admitted: Collection[Sequence], shares: FairShares
) -> Sequence | None:
    """None: nobody is ahead, or `newcomer` would have to wait for its own tenant."""
    ahead = {tenant for tenant in {sequence.request.tenant for sequence in running} if shares.is_ahead(tenant)}
    if not ahead or shares.is_ahead(newcomer.request.tenant):
        return None
    may = [
        sequence
        for sequence in running
        if sequence.request.tenant in ahead
        and sequence.num_given_way < MAX_GIVEN_WAY
        and sequence.order[0] >= newcomer.order[0]
        and sequence not in just_admitted
    ]
    return max(may, key=lambda sequence: (sequence.request.tenant.service, order_of(sequence)), default=None)

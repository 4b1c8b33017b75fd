"""Who gives its row and blocks back to a tenant that is not ahead: the latest of the tenant that is furthest ahead.

It keeps its output, and the prefix cache what it has computed while there is room, so little is computed twice.
"""

from collections.abc import Collection

from .fair_share import FairShares
from .ordered import order_of
from .request import Sequence

MAX_GIVEN_WAY = 8  # times in a sequence's life, so that everybody ends


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

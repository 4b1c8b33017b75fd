"""Bugs to plant in scheduler, pool, outbox, recovery and client session: each must make the simulations fail.

Each entry: (file, a text that occurs once, its replacement, the effect of the bug).
"""

from .mutations_kv import KV_MUTATIONS
from .mutations_requests import REQUEST_MUTATIONS

MUTATIONS = [*KV_MUTATIONS, *REQUEST_MUTATIONS]

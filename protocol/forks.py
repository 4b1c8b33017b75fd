"""What a forked child lets go of: sockets, pipes, locks and finalizers that it has as copies of its parent's.

After `os.fork()` a child that ends in the ordinary way runs its copies of all finalizers, and would end what its parent
still uses. A process that is started anew (`subprocess`, multiprocessing's spawn) has no copies.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Owner = TypeVar("Owner")

_owners: "weakref.WeakKeyDictionary[Any, Callable[[Any], object]]" = weakref.WeakKeyDictionary()


def in_forked_child(owner: Owner, let_go: Callable[[Owner], object]) -> None:
    """Have `let_go(owner)` called in every process that is forked while `owner` lives. It must take no lock: a thread
    that held one is not there to release it."""
    _owners[owner] = let_go


def _let_go_of_all() -> None:
    for owner, let_go in list(_owners.items()):
        let_go(owner)


os.register_at_fork(after_in_child=_let_go_of_all)

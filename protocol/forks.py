"""Makes a forked child release its copies of the parent's sockets, pipes, locks and finalizers.

A child of `os.fork()` that ends normally runs its copies of all finalizers, and would close what its parent still
uses. A process that is started afresh (`subprocess`, multiprocessing's spawn) has no copies.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Owner = TypeVar("Owner")

_owners: "weakref.WeakKeyDictionary[Any, Callable[[Any], object]]" = weakref.WeakKeyDictionary()


def in_forked_child(owner: Owner, let_go: Callable[[Owner], object]) -> None:
    """Call `let_go(owner)` in every process that is forked while `owner` is alive.

    `let_go` must take no lock: the thread that held it does not exist in the child.
    """
    _owners[owner] = let_go


def _let_go_of_all() -> None:
    for owner, let_go in list(_owners.items()):
        let_go(owner)


os.register_at_fork(after_in_child=_let_go_of_all)

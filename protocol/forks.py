"""Makes a forked child release its copies of the parent's sockets, pipes, locks and finalizers.

A child of `os.fork()` that ends normally runs its copies of all finalizers, and would close resources that its parent
still uses. A newly started process (`subprocess`, multiprocessing's spawn) has no copies.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Owner = TypeVar("Owner")

_owners: "weakref.WeakKeyDictionary[Any, Callable[[Any], object]]" = weakref.WeakKeyDictionary()


def in_forked_child(owner: Owner, release: Callable[[Owner], object]) -> None:
    """Call `release(owner)` in every process that is forked while `owner` is alive.

    `release` must take no lock: the thread that held it does not exist in the child.
    """
    _owners[owner] = release


def _release_all() -> None:
    for owner, release in list(_owners.items()):
        release(owner)


os.register_at_fork(after_in_child=_release_all)

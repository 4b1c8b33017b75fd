"""A queue of kernel calls, so that Python does not run between the kernels of a step with chunks.

Between two kernels Python takes 40 to 165 us, because they evict its objects from the caches, and the pool's threads
fall asleep meanwhile. While calls only wait, each takes about 15 us.
"""

from contextlib import ExitStack
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..library import Kernel, Pool
from .program import Call, Program
from .torch_watch import VIEWS, shares_memory


class QueuedCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """A context in which kernel calls wait. They run, in order, before torch computes or allocates, or at the end.

    From then on calls do not wait: a call that waits holds addresses only, so nothing that torch allocates may be freed
    before it has run. Inside the context, only kernels and torch may read a kernel's result. After an exception the
    waiting calls are dropped.
    """

    def __init__(self, pool: Pool):
        super().__init__()  # type: ignore[no-untyped-call]
        self._pool = pool
        self._calls: list[Call] = []
        self._waits: ExitStack = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """See TorchWatch."""
        return False

    def __enter__(self) -> "QueuedCalls":
        self._waits.enter_context(self._pool.watched(self._waiting))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        if error is not None:
            self._calls.clear()
        self._run()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in VIEWS:
            result = func(*args, **(kwargs or {}))
            if shares_memory(result, args[0]):
                return result
        self._run()
        return func(*args, **(kwargs or {}))

    def _waiting(self, name: str, kernel: Kernel) -> Kernel:
        return lambda handle, params: self._calls.append((name, params))

    def _run(self) -> None:
        self._waits.close()
        if self._calls:
            Program(self._pool, self._calls).run()
            self._calls.clear()

"""Runs work on texts for an event loop: small work on the loop itself, large work in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
WORK_THREADS = 4  # each takes up to 150 bytes per token while it tokenizes
INLINE_CHARS = 8192  # longer texts are tokenized in a thread: 1 ms of the loop at most
LONG = 1 << 20  # characters; the size to give for slow work, such as making a second tokenizer


def text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WORK_THREADS, "text")


async def off_loop(threads: ThreadPoolExecutor, size: int, function: Callable[..., Result], *args: object) -> Result:
    """Return `function(*args)`, run in a thread when `size` (characters) is large, so that other streams continue."""
    if size <= INLINE_CHARS:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(threads, function, *args)

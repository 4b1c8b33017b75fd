"""Work on texts beside an event loop: small work on the loop, large work in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
WORK_THREADS = 4  # each may take 150 bytes a token while it tokenizes
INLINE_CHARS = 8192  # longer texts are tokenized in a thread: 1 ms of the loop at most
LONG = 1 << 20  # characters, for what takes as long as so many: a second tokenizer may have to be made


def text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WORK_THREADS, "text")


async def off_loop(threads: ThreadPoolExecutor, size: int, function: Callable[..., Result], *args: object) -> Result:
    """`function(*args)`; in a thread if it works on many characters, its `size`, so that other streams go on."""
    if size <= INLINE_CHARS:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(threads, function, *args)

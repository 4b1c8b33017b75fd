"""Measure the time that a client spends per token in the steady state: one frame of columns per step, many streams.

The interpreter is the limit: a loop over the columns without dictionaries, one append to a journal, one wake-up.
`decode` is msgspec alone; `route` adds the stream table, with readers that are far behind; `route+take` adds a delta
per token; `asyncio` is the whole path to 256 coroutines that each await the next delta. Target: 1 us per token for
`route`.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable

import msgspec

from paged_serve.frontend.client.streams.deltas import SequenceDelta
from paged_serve.frontend.client.streams.request_streams import RequestStreams
from paged_serve.frontend.client.streams.stream_table import StreamTable
from paged_serve.protocol.messages.engine_core import EngineCoreOutputs, FromEngineCore, TokenColumns
from paged_serve.protocol.messages.message import pack_ids, pack_int64
from paged_serve.protocol.messages.sampling_params import SamplingParams

STEPS = 100
PARAMS = SamplingParams(max_tokens=None)


def frames(num_streams: int) -> list[bytes]:
    ids, firsts = pack_int64(range(1, num_streams + 1)), pack_ids([0] * num_streams)
    encode = msgspec.msgpack.Encoder().encode
    tokens = [pack_ids((stream + step) % 50000 for stream in range(num_streams)) for step in range(STEPS)]
    return [encode(EngineCoreOutputs(1, s, TokenColumns(ids, firsts, s, tokens[s]))) for s in range(STEPS)]


def table_of(num_streams: int) -> tuple[StreamTable, list[RequestStreams]]:
    table = StreamTable()
    return table, [table.add([1, 2, 3], PARAMS) for _ in range(num_streams)]


def decode_only(num_streams: int) -> Callable[[], None]:
    data, decode = frames(num_streams), msgspec.msgpack.Decoder(FromEngineCore).decode

    def run() -> None:
        for frame in data:
            decode(frame)

    return run


def route(num_streams: int, take: bool) -> Callable[[], None]:
    data, decode = frames(num_streams), msgspec.msgpack.Decoder(FromEngineCore).decode

    def run() -> None:
        table, requests = table_of(num_streams)
        for frame in data:
            table.receive(decode(frame))
            if take:
                for request in requests:
                    request.take()

    return run


async def read_all(request: RequestStreams, steps: int) -> list[SequenceDelta]:
    """Read the deltas as AsyncRequest does."""
    deltas, count = [], 0
    loop = asyncio.get_running_loop()
    while count < steps:
        while (delta := request.take()) is None:
            request.waiter = loop.create_future()
            await request.waiter
        count += len(delta.token_ids)
        deltas.append(delta)
    return deltas


def wake(request: RequestStreams) -> None:
    if request.waiter is not None and not request.waiter.done():
        request.waiter.set_result(None)


def to_coroutines(num_streams: int) -> Callable[[], None]:
    data, decode = frames(num_streams), msgspec.msgpack.Decoder(FromEngineCore).decode

    async def main() -> None:
        table, requests = table_of(num_streams)
        for request in requests:
            request.on_output = wake
        tasks = [asyncio.create_task(read_all(request, STEPS)) for request in requests]
        await asyncio.sleep(0)
        for frame in data:
            table.receive(decode(frame))
            await asyncio.sleep(0)  # twice: the futures' callbacks, then the tasks
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    return lambda: asyncio.run(main())


def measure(run: Callable[[], None], num_streams: int, repeats: int) -> tuple[float, float]:
    """Median and interquartile range, in microseconds per token."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) / (STEPS * num_streams) * 1e6)
    quarters = statistics.quantiles(times, n=4)
    return statistics.median(times), quarters[2] - quarters[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    cases = {
        "decode": decode_only(options.streams),
        "route": route(options.streams, take=False),
        "route+take": route(options.streams, take=True),
        "asyncio": to_coroutines(options.streams),
    }
    print(f"{options.streams} streams, {STEPS} steps, median of {options.repeats}")
    results = {}
    for name, run in cases.items():
        median, spread = measure(run, options.streams, options.repeats)
        results[name] = round(median, 3)
        print(f"{name:12s} {median:7.3f} us per token  ±{spread:5.3f}  {1 / median:7.2f} M tokens/s")
    print(json.dumps({"bench": "client", "streams": options.streams, "us_per_token": results}))


if __name__ == "__main__":
    main()

"""Measure how many streams `paged-serve bench serve` can read before the client itself becomes the limit.

    python scripts/serving/bench_load_client.py [--streams 2000] [--tokens 40]

Regime: one core of a client that receives one small packet per token and stream, as from a server that decodes one
token per step: a socket read, HTTP chunk framing, one event, its JSON, one timestamp. A child process acts as the
server and writes one chunk to every stream in rotation, as fast as possible. The figure is chunks per second of the
client's CPU time, so it does not depend on other load; 1,000 streams at 20 tokens per second need 20,000.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import socket
import time

import uvloop

from paged_serve.frontend.bench.load.load import LoadRequest
from paged_serve.frontend.bench.load.open_loop import LoadGenerator, Server
from paged_serve.frontend.bench.report.load_result import LoadResult
from paged_serve.frontend.open_files import raise_open_files_limit

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
SHARED = '"id":"cmpl-466ff2af370b81fb746e5a7717db89c6","object":"text_completion","created":1795250787,"model":"demo"'
EVENT = f'data: {{{SHARED},"choices":[{{"index":0,"text":" word","logprobs":null,"finish_reason":null}}]}}\n\n'.encode()
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
LAST = b"data: [DONE]\n\n"
END = b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAST), LAST)


class Source(asyncio.Protocol):
    """The server's side of a stream; it is added to `streams` when its request has arrived."""

    def __init__(self, streams: list[asyncio.Transport]):
        self._streams = streams
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked += data
        if self._asked.endswith(b"}"):
            self._transport.write(HEAD)
            self._streams.append(self._transport)


async def run_server(listener: socket.socket, num_streams: int, num_tokens: int) -> None:
    streams: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(lambda: Source(streams), sock=listener)
    while len(streams) < num_streams:
        await asyncio.sleep(0.01)
    for _ in range(num_tokens):
        for stream in streams:
            stream.write(CHUNK)
        while any(stream.get_write_buffer_size() for stream in streams):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
    for stream in streams:
        stream.write(END)
    await asyncio.sleep(5)
    server.close()


def serve(listener: socket.socket, num_streams: int, num_tokens: int) -> None:
    raise_open_files_limit()
    uvloop.run(run_server(listener, num_streams, num_tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    raise_open_files_limit()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    child = multiprocessing.get_context("fork").Process(
        target=serve, args=(listener, options.streams, options.tokens), daemon=True
    )
    child.start()
    server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", timeout_s=120.0)
    requests = [LoadRequest([1, 2, 3], options.tokens)] * options.streams
    began, busy_s = time.perf_counter(), time.process_time()
    timelines = uvloop.run(LoadGenerator(server).run(requests, [0.0] * len(requests)))
    busy_s, elapsed_s = time.process_time() - busy_s, time.perf_counter() - began
    child.terminate()
    result = LoadResult.of(timelines, {})
    assert result.num_answered == options.streams, result.errors
    assert result.num_chunks == options.streams * options.tokens
    figures = {
        "streams": options.streams,
        "chunks": result.num_chunks,
        "us_per_chunk": round(1e6 * busy_s / result.num_chunks, 2),
        "chunks_per_cpu_second": round(result.num_chunks / busy_s),
        "elapsed_s": round(elapsed_s, 2),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,
    }
    print(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in figures.items()))
    print(json.dumps({"bench": "load client", **figures}))


if __name__ == "__main__":
    main()

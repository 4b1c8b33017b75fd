"""Raw sockets of attackers and faulty programs while others stream: the streams are unaffected."""

import asyncio
import json
import random
import time

import psutil
import pytest

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.protocol.messages.engine_core import Utility

from ..serving import Server, serving

BODY = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0.8, "ignore_eos": True, "stream": True}
JSON = b"content-type: application/json\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n" + JSON
WITHIN_S = 100.0  # the server closes a connection after ten seconds; it may have to wait for a core as well


def request(body: dict | bytes, *, extra: bytes = b"") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HEAD + extra + b"content-length: %d\r\n\r\n" % len(data) + data


async def stream(server: Server, seed: int) -> str:
    """The text of one well-behaved stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request({**BODY, "seed": seed}, extra=b"connection: close\r\n"))
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200"), answer[:300]
    assert "data: [DONE]" in answer
    lines = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


async def send(server: Server, *parts: bytes, pause_s: float = 0.0, leave_after_s: float = 1.0) -> bytes:
    """The answer to these bytes, until the server closes the connection or `leave_after_s` has passed."""
    answer = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(leave_after_s):
            while more := await reader.read(65536):
                answer += more
        writer.close()
    except (TimeoutError, OSError):
        writer.transport.abort()
    return answer


async def garbage(server: Server, rng: random.Random) -> None:
    answer = await send(server, rng.randbytes(rng.randint(1, 4096)), leave_after_s=0.2)
    assert b" 200 " not in answer


async def long_headers(server: Server, rng: random.Random) -> None:
    filler = b"x-%d: %s\r\n" % (rng.randrange(10**6), b"a" * rng.choice([10, 1000, 30_000]))
    await send(server, b"GET / HTTP/1.1\r\nhost: localhost\r\n", filler * (1 + 400_000 // len(filler)))


async def odd_chunks(server: Server, rng: random.Random) -> None:
    start = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    rest = rng.choice(
        [b"fffffffffffffffff\r\n", b"-1\r\n", b"1;" + b"x" * 10**6, b"0\r\n" + b"a: b\r\n" * 10**5, b"zz"]
    )
    await send(server, start, rest, leave_after_s=0.3)


async def pipelined(server: Server, rng: random.Random) -> None:
    await send(server, request(BODY) * rng.randint(2, 20), leave_after_s=0.2)


async def never_reads(server: Server, rng: random.Random) -> None:
    await send(server, request({**BODY, "max_tokens": 50}), pause_s=rng.random(), leave_after_s=0.0)


async def smuggler(server: Server, rng: random.Random) -> None:
    both = b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n"
    answer = await send(server, HEAD + both, leave_after_s=WITHIN_S)
    assert answer.startswith(b"HTTP/1.1 400"), answer


async def half_closed(server: Server, rng: random.Random) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request(BODY)[: rng.choice([10, 100, 10_000])])
    writer.write_eof()
    await asyncio.sleep(0.1)
    writer.close()


async def slow_loris(server: Server) -> None:
    """Sends a head that never ends, until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\n")
    reading = asyncio.create_task(reader.read())
    try:
        while not reading.done():
            writer.write(b"a: b\r\n")
            await asyncio.wait([reading], timeout=1.0)
    finally:
        writer.transport.abort()


async def attack(server: Server, rng: random.Random, rounds: int) -> None:
    kinds = [garbage, long_headers, odd_chunks, pipelined, never_reads, smuggler, half_closed]
    for _ in range(rounds):
        await asyncio.gather(*(kind(server, random.Random(rng.random())) for kind in kinds for _ in range(2)))


def num_descriptors(server: Server) -> int:
    [frontend] = server.children("paged_serve.frontend.http.server")
    return psutil.Process(frontend.pid).num_fds()


async def wait_until_idle(server: Server, descriptors: int) -> None:
    """Wait until all connections and sequences are gone."""
    deadline = time.monotonic() + WITHIN_S
    async with await AsyncClient.connect(server.run_dir) as client:
        while True:
            stats = json.loads(await client.utility(Utility.STATS))
            left = stats["num_running"] + stats["num_waiting"], num_descriptors(server) - descriptors
            if left[0] == 0 and left[1] <= 0:
                return
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("rounds", "num_slow"), [(3, 100), pytest.param(100, 500, marks=pytest.mark.nightly)], ids=["short", "long"]
)
def test_streams_continue_among_hostile_connections(rounds, num_slow):
    async def check(server: Server) -> None:
        alone = [await stream(server, seed) for seed in range(2)]
        descriptors = num_descriptors(server)
        slow = [asyncio.create_task(slow_loris(server)) for _ in range(num_slow)]
        attacking = asyncio.create_task(attack(server, random.Random(3), rounds))
        together: list[str] = []
        while len(together) < 8 or not attacking.done():
            together += await asyncio.gather(*(stream(server, seed % 2) for seed in range(8)))
        await attacking
        assert together == alone * (len(together) // 2)
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*slow)
        await wait_until_idle(server, descriptors)

    with serving("--num-blocks", "600") as server:
        asyncio.run(check(server))
        assert server.stop() == 0
        assert "Traceback" not in server.output()

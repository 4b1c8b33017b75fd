"""AsyncDealerChannel under asyncio and uvloop: no message is missed, no task is starved, the loop does not spin."""

import asyncio
import select
import time

import pytest
import uvloop
import zmq

from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.engine_core import EngineHeartbeat, ToEngineCore
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.transport.channel import RouterChannel


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on each kind of loop."""

    def run_on_loop(coroutine):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(asyncio.wait_for(coroutine, 30))

    return run_on_loop


async def connected(link, **options):
    dealer = link.async_dealer(**options)
    while not dealer.send(handshake_hello("client", 0, 0)):
        await asyncio.sleep(0.001)
    while (delivered := link.router.receive()) is None:
        await asyncio.sleep(0.001)
    return dealer, delivered[0]


async def send_all(link, peer, count):
    for step in range(count):
        while not link.router.send(peer, EngineHeartbeat(step)):
            await asyncio.sleep(0)


def test_ten_thousand_messages_arrive_in_order(link, run):
    async def body():
        dealer, peer = await connected(link)
        sender = asyncio.create_task(send_all(link, peer, 10_000))
        for step in range(10_000):
            assert await dealer.receive() == EngineHeartbeat(step)
        await sender
        dealer.close()

    run(body())


def test_a_full_queue_lets_other_tasks_run(link, run):
    async def body():
        dealer, peer = await connected(link, queue_frames=10_000)
        await send_all(link, peer, 9_000)
        turns = 0

        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count_turns())
        for step in range(9_000):
            assert await dealer.receive() == EngineHeartbeat(step)
        assert turns >= 9_000 // 64
        counter.cancel()
        dealer.close()

    run(body())


@pytest.mark.nightly
def test_the_event_loop_is_never_blocked_for_long(link, run):
    async def body():
        dealer, peer = await connected(link)
        gaps = []

        async def measure():
            last = time.thread_time()
            while True:
                await asyncio.sleep(0)
                now = time.thread_time()
                gaps.append(now - last)
                last = now

        tasks = [asyncio.create_task(measure()), asyncio.create_task(send_all(link, peer, 100_000))]
        for _ in range(100_000):
            await dealer.receive()
        for task in tasks:
            task.cancel()
        dealer.close()
        return max(gaps)

    gap = run(body())
    print(f"longest gap {1000 * gap:.1f} ms of processor time")
    assert gap < 0.2


def test_sending_while_another_task_waits_misses_no_message(link, run):
    """A send consumes the descriptor's signal; the answer of each round must still wake the receiver."""

    async def body():
        dealer, peer = await connected(link)
        waiting = asyncio.create_task(dealer.receive())
        for step in range(2_000):
            await asyncio.sleep(0)
            assert link.router.send(peer, EngineHeartbeat(step))
            while not dealer.send(handshake_hello("client", 0, 0)):
                await asyncio.sleep(0)
            assert await waiting == EngineHeartbeat(step)
            waiting = asyncio.create_task(dealer.receive())
            while link.router.receive() is not None:
                pass
        dealer.close()
        with pytest.raises(ProtocolError, match="closed"):
            await waiting

    run(body())


def test_waiting_costs_no_processor_time(link, run):
    async def body():
        dealer, peer = await connected(link)
        waiting = asyncio.create_task(dealer.receive())
        await asyncio.sleep(0.05)
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1
        assert link.router.send(peer, EngineHeartbeat(1))
        assert await waiting == EngineHeartbeat(1)
        dealer.close()

    run(body())


def test_a_cancelled_receive_loses_nothing(link, run):
    async def body():
        dealer, peer = await connected(link)
        for step in range(200):
            waiting = asyncio.create_task(dealer.receive())
            await asyncio.sleep(0)
            assert link.router.send(peer, EngineHeartbeat(step))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await dealer.receive() == EngineHeartbeat(step)
        dealer.close()

    run(body())


def test_the_channel_survives_a_restart_of_the_server(link, run):
    async def body():
        dealer, _ = await connected(link)
        waiting = asyncio.create_task(dealer.receive())
        link.router.close()
        while dealer.send(handshake_hello("client", 0, 0)):
            await asyncio.sleep(0.001)
        link.router = type(link.router)(link.context, link.endpoint, ToEngineCore)
        link.opened.append(link.router)
        while not dealer.send(handshake_hello("client", 0, 0)):
            await asyncio.sleep(0.001)
        while (delivered := link.router.receive()) is None:
            await asyncio.sleep(0.001)
        assert link.router.send(delivered[0], EngineHeartbeat(9))
        assert await waiting == EngineHeartbeat(9)
        dealer.close()

    run(body())


def test_a_disconnect_is_noticed_although_the_receiver_called_the_socket_first(link, run):
    """The call consumes the signal that the descriptor gives."""

    async def body():
        dealer, _ = await connected(link)
        link.router.close()
        while dealer.socket.get(zmq.EVENTS) & zmq.POLLOUT or select.select([dealer.socket], [], [], 0.1)[0]:
            pass  # the loop does not run, so these calls consume every signal
        reading = asyncio.create_task(dealer.receive())
        while not dealer._was_cut:
            await asyncio.sleep(0.001)
        reading.cancel()
        dealer.close()

    run(body())


def test_a_disconnect_is_reported_even_after_the_server_has_returned(link, run):
    async def body():
        dealer, _ = await connected(link)
        reading = asyncio.create_task(dealer.receive())
        await asyncio.sleep(0)
        assert dealer.takes_messages()
        link.router.close()
        while not dealer._was_cut:  # seen by the loop, without a call
            await asyncio.sleep(0.001)
        link.router = RouterChannel(link.context, link.endpoint, ToEngineCore)
        link.opened.append(link.router)
        while not dealer.send(handshake_hello("client", 0, 0)):
            await asyncio.sleep(0.001)
        assert not dealer.takes_messages()
        assert dealer.takes_messages()
        reading.cancel()
        dealer.close()

    run(body())

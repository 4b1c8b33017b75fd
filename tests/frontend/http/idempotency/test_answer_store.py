"""Stored answers: every reader gets exactly its events, whichever disconnects and however little is stored."""

import asyncio
import contextlib
import random
from contextlib import ExitStack

import pytest

from paged_serve.frontend.http.exchange.errors import HttpError
from paged_serve.frontend.http.idempotency.keys import EventId, KeyedRequest
from paged_serve.frontend.http.idempotency.store import ENTRY_BYTES, MAX_REMEMBERED, AnswerStore
from paged_serve.frontend.http.idempotency.stored_answer import EVENT_OVERHEAD_BYTES, StoredAnswer
from paged_serve.protocol.messages.config import ServerConfig

ID = "cmpl-" + "0" * 32


def event(number: int) -> bytes:
    return b"<%d%s>" % (number, b"." * 30)


class Source:
    """Produces events on demand, and records whether it was closed."""

    def __init__(self, num_events: int):
        self.num_events = num_events
        self.made = 0
        self.closed = False
        self.allowed = asyncio.Semaphore(0)

    def allow(self, count: int) -> None:
        for _ in range(count):
            self.allowed.release()

    async def batches(self):
        try:
            while self.made < self.num_events:
                await self.allowed.acquire()
                self.made += 1
                yield [event(self.made)]
        finally:
            self.closed = True


def begin(kept: AnswerStore, source: Source, key: str = "k", *, first: int = 0, admitted: ExitStack | None = None):
    answer = kept.begin(KeyedRequest(b"", key, "d"), f"{ID}{key}", streams=True, first=first)
    answer.make(source.batches(), admitted or ExitStack())
    return answer


def check(kept: AnswerStore) -> None:
    answers = [*kept._by_id.values()]
    assert {*kept._by_key.values()} == {*answers}
    assert kept.num_bytes == sum(answer.size + ENTRY_BYTES for answer in answers)
    for answer in answers:
        assert answer.size == sum(len(each) + EVENT_OVERHEAD_BYTES for each in answer._events)
        assert len(answer._events) == max(0, answer.last - answer.first)
        assert answer.has_reader != (answer in kept._unread)
    assert {*kept._unread} <= {*answers}


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def read(answer: StoredAnswer, after: int, until: int | None = None) -> bytes:
    """The events after `after`, up to number `until` or to the end."""
    found = b""
    async with contextlib.aclosing(answer.events_after(after)) as events:
        async for part in events:
            found += part
            if until is not None and found.count(b"<") + after >= until:
                break
    return found


def events(first: int, last: int) -> bytes:
    return b"".join(map(event, range(first, last + 1)))


def run(test):
    """Decorator: lets pytest call a coroutine function."""
    return lambda: asyncio.run(test())


@run
async def test_a_reader_that_returns_gets_all_events():
    kept, source = AnswerStore(ServerConfig()), Source(5)
    answer = begin(kept, source)
    reader = answer.events_after(0)
    source.allow(2)
    assert await anext(reader) in (events(1, 1), events(1, 2))
    await reader.aclose()
    source.allow(3)
    await settle()
    assert answer.done
    assert not source.closed or source.made == 5
    assert await read(answer, 1) == events(2, 5)
    assert await read(answer, 0) == events(1, 5)
    assert await read(answer, 5) == b""
    with pytest.raises(HttpError, match="names event 6; this answer has 5") as refused:
        await read(answer, 6)
    assert refused.value.status == 400
    check(kept)


@run
async def test_an_answer_without_a_reader_ends_after_the_grace_period():
    kept, source, admitted, left = AnswerStore(ServerConfig(resume_grace_s=0.01)), Source(5), ExitStack(), []
    admitted.callback(left.append, True)
    answer = begin(kept, source, admitted=admitted)
    source.allow(1)
    await read(answer, 0, until=1)
    async with asyncio.timeout(60):
        while not left:
            await asyncio.sleep(0.01)
    assert source.closed
    assert len(kept) == kept.num_bytes == 0
    with pytest.raises(HttpError, match="no longer stored") as gone:
        kept.of_id(b"", answer.answer_id, 1)
    assert gone.value.status == 410


@run
async def test_without_a_grace_period_an_answer_ends_with_its_reader():
    kept, source = AnswerStore(ServerConfig(resume_grace_s=0)), Source(5)
    answer = begin(kept, source)
    source.allow(1)
    await read(answer, 0, until=1)
    await settle()
    assert source.closed
    assert len(kept) == 0


@run
async def test_the_later_of_two_readers_continues():
    kept, source = AnswerStore(ServerConfig()), Source(3)
    answer = begin(kept, source)
    earlier = asyncio.create_task(read(answer, 0))
    await settle()
    later = asyncio.create_task(read(answer, 0))
    await settle()
    with pytest.raises(HttpError, match="taken over") as refused:
        await earlier
    assert refused.value.status == 409
    source.allow(3)
    assert await later == events(1, 3)
    check(kept)


@run
async def test_a_slow_reader_pauses_the_generation_and_loses_nothing():
    kept, source = AnswerStore(ServerConfig(resume_bytes_per_answer=1000)), Source(200)
    answer = begin(kept, source)
    source.allow(200)
    found, reader = b"", answer.events_after(0)
    async for part in reader:
        found += part
        await settle()
        assert answer.size < 1000 + len(event(200)) + EVENT_OVERHEAD_BYTES
        check(kept)
    assert found == events(1, 200)
    with pytest.raises(HttpError, match="are no longer stored") as gone:
        kept.of_id(b"", answer.answer_id, 0)
    assert gone.value.status == 410
    assert kept.of_request(answer.request, None) is None
    assert kept.of_request(answer.request, EventId(answer.answer_id, 200)) is answer


@run
async def test_an_unread_answer_ends_at_the_bound():
    kept, source = AnswerStore(ServerConfig(resume_bytes_per_answer=1000)), Source(200)
    answer = begin(kept, source)
    source.allow(1)
    await read(answer, 0, until=1)
    source.allow(199)
    await settle()
    assert source.closed
    assert source.made < 20
    assert len(kept) == kept.num_bytes == 0


@run
async def test_the_answer_whose_reader_left_first_is_evicted_first():
    kept = AnswerStore(ServerConfig(resume_bytes=3 * ENTRY_BYTES + 2000))
    sources = [Source(10) for _ in range(4)]
    for number, source in enumerate(sources):
        source.allow(1)
        await read(begin(kept, source, str(number)), 0, until=1)
    await settle()
    assert [key for _, key in kept._by_key] == ["1", "2", "3"]
    assert sources[0].closed
    check(kept)


@run
async def test_a_failed_answer_is_generated_again():
    async def fails():
        yield [event(1)]
        raise HttpError(500, "no")

    kept = AnswerStore(ServerConfig())
    answer = kept.begin(KeyedRequest(b"", "k", "d"), ID, streams=True, first=0)
    answer.make(fails(), ExitStack())
    with pytest.raises(HttpError, match="no"):
        await read(answer, 0)
    assert kept.of_request(answer.request, None) is None
    assert len(kept) == 0


@run
async def test_callers_do_not_see_each_other_and_a_key_is_for_one_request():
    kept, source = AnswerStore(ServerConfig()), Source(1)
    answer = begin(kept, source)
    assert kept.of_request(KeyedRequest(b"other", "k", "e"), None) is None
    with pytest.raises(HttpError, match="There is no stream") as unknown:
        kept.of_id(b"other", answer.answer_id, 0)
    assert unknown.value.status == 404
    with pytest.raises(HttpError, match="another recent request") as used:
        kept.of_request(KeyedRequest(b"", "k", "e"), None)
    assert used.value.status == 422
    assert kept.of_id(b"", answer.answer_id, 0) is answer


@run
async def test_the_number_of_remembered_answers_is_bounded():
    kept = AnswerStore(ServerConfig())
    for number in range(MAX_REMEMBERED + 10):
        kept.remove(begin(kept, Source(0), str(number)))
    assert len(kept._gone) == MAX_REMEMBERED


async def _random_traffic(rng: random.Random) -> None:
    """Readers connect, read a part, disconnect and reconnect; some answers are generated again, some removed."""
    per_answer = rng.choice([300, 2000, 1 << 20])
    kept = AnswerStore(ServerConfig(resume_bytes_per_answer=per_answer, resume_bytes=rng.choice([12000, 1 << 20])))
    lengths = [rng.randint(0, 60) for _ in range(4)]

    async def client(key: str, length: int) -> None:
        had = b""
        request, answer_id = KeyedRequest(b"", key, "d"), f"{ID}{key}"
        for attempt in range(50):
            count = had.count(b"<")
            answer = kept.of_request(request, EventId(answer_id, count))
            if answer is None:
                source = Source(length)
                source.allow(length)
                answer = begin(kept, source, key, first=count)
            until = None if attempt > 40 else rng.randint(count, length)
            with contextlib.suppress(HttpError):
                had += await read(answer, count, until)
            check(kept)
            for _ in range(rng.randint(0, 5)):
                await asyncio.sleep(0)
            if had == events(1, length) and attempt > 5:
                return
        raise AssertionError(f"{key}: {had!r}")

    await asyncio.gather(*(client(str(number), length) for number, length in enumerate(lengths)))
    check(kept)
    for answer in [*kept._by_id.values()]:
        kept.remove(answer)
    assert kept.num_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_random_traffic_loses_no_event_and_counts_every_byte(seed):
    asyncio.run(_random_traffic(random.Random(seed)))

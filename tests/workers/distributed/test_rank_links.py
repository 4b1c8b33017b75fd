"""Links between ranks: messages of every size arrive complete and in order; a lost or silent peer ends the wait."""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from paged_serve.workers.distributed.rank_links import RankLinks, RankLost, set_timeouts

SIZES = [1, 7, 4096, 60_000, 200_000, 3_000_000]


@pytest.fixture
def meet(tmp_path):
    """meet(size) returns that many joined ranks."""
    joined = []

    def meet(size):
        join = partial(RankLinks.join, size=size, place=str(tmp_path / "place"), timeout_s=60.0)
        with ThreadPoolExecutor(size) as threads:
            joined.extend(threads.map(join, range(size)))
        assert list(tmp_path.iterdir()) == []
        return joined[-size:]

    yield meet
    for links in joined:
        links.close()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_length_arrives_whole_and_in_order(meet, size):
    """Two hundred exchanges of random lengths, small and large; ranks get as far ahead of each other as they can."""

    def work(links: RankLinks, rank: int) -> int:
        lengths, wrong = random.Random(size), 0
        for number in range(200):
            length = lengths.choice(SIZES if number % 20 == 0 else SIZES[:4])
            parts = [bytearray(length) for _ in range(size)]
            parts[rank][:] = bytes([(number + rank) % 251]) * length
            links.exchange([memoryview(part) for part in parts])
            wrong += sum(part != bytes([(number + other) % 251]) * length for other, part in enumerate(parts))
        return wrong

    ranks = meet(size)
    with ThreadPoolExecutor(size) as threads:
        assert list(threads.map(work, ranks, range(size))) == [0] * size


def test_one_rank_sends_to_all(meet):
    ranks = meet(3)
    ranks[1].send(memoryview(b"hello"))
    for other in (0, 2):
        heard = bytearray(5)
        ranks[other].receive(1, memoryview(heard))
        assert heard == b"hello"


def test_a_rank_that_ends_is_detected_at_once(meet):
    ranks = meet(2)
    ranks[1].close()
    with pytest.raises(RankLost, match=r"has ended|any more"):
        ranks[0].exchange([memoryview(bytearray(8)), memoryview(bytearray(8))])


def test_the_wait_for_a_silent_rank_times_out(meet):
    ranks = meet(2)
    set_timeouts(ranks[0]._peers[1], 0.2)
    with pytest.raises(RankLost, match="silent"):
        ranks[0].exchange([memoryview(bytearray(8)), memoryview(bytearray(8))])


def test_a_rank_that_waits_alone_times_out(tmp_path):
    for rank, words in ((0, "not all ranks"), (1, "no peer")):
        with pytest.raises(RankLost, match=words):
            RankLinks.join(rank, 2, str(tmp_path / f"place{rank}"), 0.2)
    assert list(tmp_path.iterdir()) == []

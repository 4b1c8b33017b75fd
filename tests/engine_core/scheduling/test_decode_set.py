"""The columns compared with a dictionary, under random joins and leaves."""

import random
from array import array

import pytest

from paged_serve.engine_core.scheduling.decode_set import MAX_ADVANCE, DecodeSet
from paged_serve.protocol.messages.message import unpack_ids, unpack_int64


def members(drive, count, clients):
    """Running sequences of `clients`, every third one with logprobs."""
    driver = drive(max_num_seqs=count, num_blocks=1024, max_num_batched_tokens=4096)
    for client in clients[1:]:
        driver.engine.add_client(client, 0.0)
    for i in range(count):
        logprobs = 1 if i % 3 == 0 and len(clients) > 1 else None
        driver.add([i + 1] * 3, client=clients[i % len(clients)], logprobs=logprobs, stop_token_ids=(i % 5,))
    driver.plan()
    return driver.scheduler.running


@pytest.mark.parametrize("clients", [[b"client:0"], [b"client:0", b"client:1"], [b"client:0", b"b", b"c"]])
@pytest.mark.parametrize("seed", range(5))
def test_random_joins_and_leaves_give_each_row_its_token(drive, clients, seed):
    rng, sequences = random.Random(seed), members(drive, 20, clients)
    decode, joined_at, snapshots = DecodeSet(), {}, []
    for step in range(1, 60):
        leaving = rng.sample(sorted(joined_at, key=id), rng.randint(0, min(3, len(joined_at))))
        decode = decode.without([decode.index(sequence) for sequence in leaving])
        for sequence in leaving:
            del joined_at[sequence]
        joining = [s for s in rng.sample(sequences, rng.randint(0, 4)) if s not in joined_at]
        decode = decode.joined(joining, step)
        joined_at |= dict.fromkeys(joining, step)
        assert decode.rows == sorted(sequence.row for sequence in joined_at)
        assert decode.stop_ids == frozenset().union(*(sequence.stop_ids for sequence in joined_at))
        tokens = array("i", [1000 * step + row for row in decode.rows])
        received = {}
        for client, columns in decode.columns(step, tokens).items():
            firsts, ids = unpack_ids(columns.first_positions), unpack_int64(columns.stream_ids)
            for stream, first, token in zip(ids, firsts, unpack_ids(columns.token_ids), strict=True):
                received[client, stream] = (first + columns.advance, token)
        assert received == {
            (s.request.client, s.stream_id): (1 + step - joined, 1000 * step + s.row)
            for s, joined in joined_at.items()
            if s.plain
        }
        snapshots.append((decode, decode.rows[:]))
    assert all(old.rows == rows for old, rows in snapshots), "a snapshot has changed"


def test_positions_never_exceed_int32(drive):
    sequences = members(drive, 3, [b"client:0"])
    late = 5 * MAX_ADVANCE
    now = late + MAX_ADVANCE + 9
    decode = DecodeSet()
    for sequence, step in zip(sequences, (late, late + 7, now), strict=True):
        decode = decode.joined([sequence], step)
    [columns] = decode.columns(now, array("i", [1, 2, 3])).values()
    positions = [first + columns.advance for first in unpack_ids(columns.first_positions)]
    assert positions == [MAX_ADVANCE + 10, MAX_ADVANCE + 3, 1]

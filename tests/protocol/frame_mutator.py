"""Corrupts thousands of valid frames at once, with arrays, because a fuzzer must be as fast as a decoder written in C.

A frame is cut at two positions, mostly between MessagePack tokens, and reassembled from five slices: the part before
the first cut, an insertion, the part between the cuts, another insertion, and the rest. In addition, bits and bytes
are changed in place.
"""

from dataclasses import dataclass

import numpy as np

HOSTILE_BYTES = np.array(
    [0, 0x7F, 0x80, 0x90, 0x9F, 0xA1, 0xC0, 0xC1, 0xC2, 0xC4, 0xC7, 0xCB, 0xD9, 0xDC, 0xDD, 0xDF, 0xFF], np.uint8
)
WORDS = [
    *(b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcb\xff\xf0\0\0\0\0\0\0", b"\xcb\x80\0\0\0\0\0\0\0", b"\xca\x7f\xc0\0\0"),  # NaN
    *(b"\xcf" + b"\xff" * 8, b"\xd3\x80\0\0\0\0\0\0\0", b"\xce\x80\0\0\0", b"\xcf\x40\0\0\0\0\0\0\1"),  # too large
    *(b"\xdd\x7f\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),  # 2^31 items
    *(b"\xdc\0\0", b"\xdc\0\1\0", b"\xc4\0", b"\xc4\3abc", b"\xc4\4abcd", b"\xa0", b"\xa1\xff", b"\xa4\xed\xa0\x80x"),
    *(b"\x80", b"\x81\xa1a\1", b"\x82\xa1a\1\xa1a\2", b"\x90", b"\x91\xc0", b"\xc0", b"\xc2", b"\xc3", b"\0", b"\xff"),
    *(b"\xd4\1\0", b"\xc7\0\xff", b"\xd6\xff\0\0\0\0", b"\xc1"),  # extensions, and the byte that is never used
]
MAX_DEPTH = 3000  # of nesting; the decoder stops at a thousand
NUM_RANDOM_BYTES = 1 << 16
VARIANTS = 4  # of each reassembled frame, changed in place or not
FIXED_SIZES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
LENGTH_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # of bytes and text; arrays have only headers
HEADER_SIZES = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def token_starts(frame: bytes) -> list[int]:
    """The start of each token of a valid frame: a number, text, bytes, or the header of an array or map."""
    starts, at = [], 0
    while at < len(frame):
        starts.append(at)
        kind = frame[at]
        at += 1
        if 0xA0 <= kind <= 0xBF:
            at += kind & 0x1F
        elif kind in LENGTH_SIZES:
            size = LENGTH_SIZES[kind]
            at += size + int.from_bytes(frame[at : at + size], "big")
        else:
            at += FIXED_SIZES.get(kind, 0) + HEADER_SIZES.get(kind, 0)
    assert at == len(frame), "not a whole frame"
    return starts


@dataclass(frozen=True, slots=True)
class Slices:
    """Parts of one array of bytes: [start, start + length) each."""

    starts: np.ndarray  # [slices] i64
    lengths: np.ndarray  # [slices] i64


class FrameMutator:
    """`mutate` corrupts `targets` and inserts parts of `donors`. The same seed gives the same frames."""

    def __init__(self, targets: list[bytes], donors: list[bytes], seed: int):
        self._rng = np.random.default_rng(seed)
        self._pool = np.frombuffer(
            b"".join([*targets, *donors, *WORDS, bytes(range(256)), b"\x91" * MAX_DEPTH, b"\x81" * MAX_DEPTH])
            + self._rng.bytes(NUM_RANDOM_BYTES),
            np.uint8,
        )
        lengths = np.array([len(part) for part in [*targets, *donors, *WORDS]])
        ends = np.cumsum(lengths)
        self._frame_starts, self._frame_ends = (ends - lengths)[: len(targets)], ends[: len(targets)]
        tokens = [
            start + token
            for start, frame in zip(ends - lengths, [*targets, *donors], strict=False)
            for token in token_starts(frame)
        ]
        self._tokens = np.array([*tokens, ends[len(targets) + len(donors) - 1]])
        self._first_token = np.searchsorted(self._tokens, self._frame_starts)
        self._num_tokens = np.searchsorted(self._tokens, self._frame_ends) - self._first_token
        self._words = Slices((ends - lengths)[-len(WORDS) :], lengths[-len(WORDS) :])
        self._all_bytes = int(ends[-1])  # 0, 1, .., 255
        self._deep = self._all_bytes + 256
        self._random = self._deep + 2 * MAX_DEPTH

    def mutate(self, count: int) -> list[bytes]:
        """`count` frames, a multiple of VARIANTS."""
        data, starts, lengths = self._reassemble(count // VARIANTS)
        slices = [slice(*ends) for ends in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
        mutants: list[bytes] = []
        for variant in range(VARIANTS):
            changed = self._changed(data, starts, lengths) if variant else data
            mutants += map(changed.tobytes().__getitem__, slices)
        return mutants

    def _below(self, limits: np.ndarray | int, count: int) -> np.ndarray:
        """[count] i64 in [0, limit), one of each limit."""
        return (self._rng.random(count) * limits).astype(np.int64)

    def _reassemble(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Frames end to end [bytes] u8, where each starts [count], and its length [count]."""
        chosen = self._below(len(self._frame_starts), count)
        frame_starts, frame_ends = self._frame_starts[chosen], self._frame_ends[chosen]
        cuts = np.sort(np.stack([self._cut(chosen), self._cut(chosen)]), axis=0)
        cuts[1, self._rng.random(count) < 0.6] = -1  # most frames are cut once
        cuts[1] = np.where(cuts[1] < 0, frame_ends, cuts[1])
        first_insert, after_first = self._damage(cuts[0], cuts[1])
        second_insert, after_second = self._damage(cuts[1], frame_ends)
        starts = np.stack([frame_starts, first_insert.starts, after_first, second_insert.starts, after_second], axis=1)
        lengths = np.stack(
            [
                cuts[0] - frame_starts,
                first_insert.lengths,
                cuts[1] - after_first,
                np.where(cuts[1] < frame_ends, second_insert.lengths, 0),
                frame_ends - after_second,
            ],
            axis=1,
        )
        flat_lengths = lengths.ravel()
        ends = np.cumsum(flat_lengths)
        offsets = np.repeat(starts.ravel() - (ends - flat_lengths), flat_lengths)
        data = self._pool[offsets + np.arange(len(offsets))]
        frame_lengths = lengths.sum(axis=1)
        return data, np.cumsum(frame_lengths) - frame_lengths, frame_lengths

    def _cut(self, chosen: np.ndarray) -> np.ndarray:
        """A position in each frame: between two tokens, or in one of eight cases anywhere."""
        count = len(chosen)
        token = self._below(self._num_tokens[chosen], count)
        again = (token < 2) & (self._num_tokens[chosen] > 2)  # cut the tag less often than the fields
        token = np.where(again, self._below(self._num_tokens[chosen], count), token)
        tokens = self._tokens[self._first_token[chosen] + token]
        lengths = self._frame_ends[chosen] - self._frame_starts[chosen]
        anywhere = self._frame_starts[chosen] + self._below(lengths, count)
        return np.where(self._rng.random(count) < 0.125, anywhere, tokens)

    def _damage(self, cuts: np.ndarray, ends: np.ndarray) -> tuple[Slices, np.ndarray]:
        """The insertion at each cut, and the position at which the frame continues, at most `ends`."""
        count = len(cuts)
        kind = self._rng.integers(0, 256, count)
        next_token = self._tokens[np.searchsorted(self._tokens, cuts, side="right").clip(max=len(self._tokens) - 1)]
        word = self._below(len(WORDS), count)
        token = self._below(len(self._tokens) - 9, count)
        run = np.where(kind & 1, 1, 1 + self._below(8, count))  # tokens
        a_byte = self._pool[cuts.clip(max=len(self._pool) - 1)].astype(np.int64)
        nudged = (a_byte + np.where(kind & 1, 1, 255)) & 255  # a length, a type or a number, one off
        inserts = [  # (below this kind, start, length, where it goes on)
            (80, self._words.starts[word], self._words.lengths[word], next_token),
            (104, self._words.starts[word], self._words.lengths[word], cuts),
            (136, self._all_bytes + nudged, np.ones(count, np.int64), cuts + 1),
            (160, cuts, 0, next_token),
            (172, cuts, 0, cuts + 1 + self._below(8, count)),
            (176, cuts, 0, ends),
            (208, self._tokens[token], self._tokens[token + run] - self._tokens[token], next_token),
            (224, self._tokens[token], self._tokens[token + run] - self._tokens[token], cuts),
            (240, self._random + self._below(NUM_RANDOM_BYTES - 8, count), 1 + self._below(8, count), cuts),
            (255, cuts, 0, cuts),
            (256, self._deep + (kind & 1) * MAX_DEPTH, self._below(MAX_DEPTH, count), cuts),
        ]
        conditions = [kind < limit for limit, _, _, _ in inserts]
        starts, lengths, go_on = (np.select(conditions, [entry[part] for entry in inserts]) for part in (1, 2, 3))
        return Slices(starts, lengths), np.minimum(go_on, ends)

    def _changed(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """A copy with one change per frame: a bit, a hostile byte, or a byte one higher or lower."""
        count, data = len(starts), data.copy()
        at = np.minimum(starts + self._below(lengths, count), len(data) - 1)  # of an empty frame, its neighbour's
        old, kind = data[at], self._rng.integers(0, 32, count, np.uint8)
        bits = np.uint8(1) << (kind & 7)
        hostile = HOSTILE_BYTES[self._below(len(HOSTILE_BYTES), count)]
        one_off = old + np.where(kind & 1, np.uint8(1), np.uint8(255))
        data[at] = np.select([kind < 16, kind < 24], [old ^ bits, hostile], one_off)
        return data

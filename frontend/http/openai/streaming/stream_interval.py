"""`stream_interval`: the tokens per event of a stream. The first and the last token of a choice are sent at once."""

from ..pieces import Piece


class StreamInterval:
    """Joins the pieces of each choice into pieces of at least `interval` tokens."""

    def __init__(self, interval: int):
        self._interval = interval
        self._held: dict[int, list[Piece]] = {}  # by choice
        self._begun: set[int] = set()  # choices with a token sent already
        self.num_tokens = 0  # held back

    def joined(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces that are due."""
        if self._interval == 1:
            return pieces
        return [due for piece in pieces if (due := self._push(piece)) is not None]

    def rest(self) -> list[Piece]:
        """The pieces that are held back, when no more come."""
        held, self._held, self.num_tokens = self._held, {}, 0
        return [_one(pieces) for pieces in held.values() if pieces]

    def _push(self, piece: Piece) -> Piece | None:
        held = self._held.setdefault(piece.choice, [])
        held.append(piece)
        self.num_tokens += len(piece.token_ids)
        num_tokens = sum(len(each.token_ids) for each in held)
        if piece.choice in self._begun and piece.finish_reason is None and num_tokens < self._interval:
            return None
        self._held[piece.choice] = []
        self.num_tokens -= num_tokens
        if num_tokens:
            self._begun.add(piece.choice)
        return _one(held)


def _one(pieces: list[Piece]) -> Piece:
    last = pieces[-1]
    if len(pieces) == 1:
        return last
    has_logprobs = any(piece.logprobs is not None for piece in pieces)
    return Piece(
        last.choice,
        "".join(piece.text for piece in pieces),
        [token for piece in pieces for token in piece.token_ids],
        [entry for piece in pieces for entry in piece.logprobs or ()] if has_logprobs else None,
        last.finish_reason,
        last.stop_reason,
        [end for piece in pieces for end in piece.tag_ends],
    )

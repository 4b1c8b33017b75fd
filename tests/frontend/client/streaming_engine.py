"""An engine that streams numbered tokens in any valid frames, and checks what a reader gets."""

from array import array

from hypothesis import strategies as st

from paged_serve.protocol.messages.engine_core import EngineCoreOutput, EngineCoreOutputs, Logprobs
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import columns


def logprobs_of(ids):
    """Two columns per token: the token itself, then its neighbour, with values derived from them."""
    flat = [value for token in ids for value in (token, token + 1)]
    return Logprobs(pack_ids(flat), array("f", [-value / 2 for value in flat]).tobytes(), pack_ids([1] * len(ids)))


class Truth:
    """The tokens of a stream in the engine, and those delivered to the reader."""

    def __init__(self, stream_id, index, length):
        self.stream_id, self.index = stream_id, index
        self.tokens = [100 * stream_id + position for position in range(length)]
        self.sent = 0
        self.finished = False
        self.read, self.read_logprobs, self.reasons = [], [], []


class Engine:
    """Sends the streams of one request in frames of every kind that the protocol allows."""

    def __init__(self, data, table):
        self.data, self.table = data, table
        self.logprobs = data.draw(st.booleans(), label="logprobs")
        n = data.draw(st.integers(1, 4), label="n")
        params = SamplingParams(n=n, max_tokens=None, logprobs=1 if self.logprobs else None)
        self.request = table.add([1, 2], params)
        lengths = data.draw(st.lists(st.integers(0, 12), min_size=n, max_size=n), label="lengths")
        self.truths = [Truth(self.request.request_id + i, i, length) for i, length in enumerate(lengths)]

    def output(self, truth):
        """New tokens after a repetition of some sent ones, perhaps with the finish."""
        start = self.data.draw(st.integers(0, truth.sent))
        end = self.data.draw(st.integers(truth.sent, len(truth.tokens)))
        truth.sent = end
        ids = truth.tokens[start:end]
        finish = None
        if end == len(truth.tokens) and self.data.draw(st.booleans()):
            truth.finished, finish = True, FinishReason.STOP
        logprobs = logprobs_of(ids) if self.logprobs else None
        return EngineCoreOutput(truth.stream_id, start, pack_ids(ids), finish, logprobs=logprobs)

    def columns(self):
        """The next token of some streams that have one; None when there is none, or tokens carry logprobs."""
        able = [truth for truth in self.truths if truth.sent < len(truth.tokens)]
        if not able or self.logprobs:
            return None
        chosen = self.data.draw(st.lists(st.sampled_from(able), unique=True, min_size=1))
        advance = self.data.draw(st.integers(0, min(truth.sent for truth in chosen)))
        rows = [(truth.stream_id, truth.sent - advance, truth.tokens[truth.sent]) for truth in chosen]
        for truth in chosen:
            truth.sent += 1
        return columns(1, advance, [*rows, (999_999, 0, 5)]).columns  # and a stream unknown to this client

    def frame(self):
        open_truths = [truth for truth in self.truths if not truth.finished]
        first = self.columns() if self.data.draw(st.booleans()) else None
        chosen = self.data.draw(st.lists(st.sampled_from(open_truths), unique=True)) if open_truths else []
        return EngineCoreOutputs(1, 0, first, tuple(self.output(truth) for truth in chosen))

    def read(self):
        while (delta := self.request.take()) is not None:
            truth = self.truths[delta.index]
            truth.read += delta.token_ids
            truth.read_logprobs += delta.logprobs or []
            truth.reasons += [delta.finish_reason] if delta.finish_reason is not None else []

    def close(self):
        outputs = tuple(
            EngineCoreOutput(
                t.stream_id,
                t.sent,
                pack_ids(t.tokens[t.sent :]),
                FinishReason.STOP,
                logprobs=logprobs_of(t.tokens[t.sent :]) if self.logprobs else None,
            )
            for t in self.truths
            if not t.finished
        )
        return EngineCoreOutputs(1, 0, outputs=outputs)

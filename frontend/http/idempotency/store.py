"""All stored answers, limited in time and bytes. An answer can be computed again, so dropping one loses nothing."""

import asyncio

from paged_serve.protocol.messages.config import ServerConfig

from ...buffer_budget import BufferBudget
from ..exchange.errors import HttpError
from .keys import EventId, KeyedRequest
from .stored_answer import StoredAnswer

ENTRY_BYTES = 4096  # an answer without its events
MAX_REMEMBERED = 1024  # ids of answers no longer stored
REPEAT = "Repeat the POST with its Idempotency-Key and Last-Event-ID: the same events are made again."


class AnswerStore:
    """The answers of one frontend. An answer without a reader is still computed, and stored for a grace period."""

    def __init__(self, server: ServerConfig, budget: BufferBudget | None = None):
        """`budget` limits the memory of the frontend, stored answers included."""
        self._grace_s = server.resume_grace_s
        self._max_answer_bytes = server.resume_bytes_per_answer
        self._max_bytes = server.resume_bytes
        self._by_key: dict[tuple[bytes, str], StoredAnswer] = {}
        self._by_id: dict[tuple[bytes, str], StoredAnswer] = {}
        self._unread: dict[StoredAnswer, asyncio.TimerHandle] = {}  # ordered by when their readers left
        self._gone: dict[tuple[bytes, str], None] = {}
        self.num_bytes = 0
        self._budget = budget or BufferBudget(server.max_buffered_bytes)
        self._budget.pools.append(self)

    def __len__(self) -> int:
        return len(self._by_id)

    def of_key(self, caller: bytes, key: str) -> StoredAnswer | None:
        return self._by_key.get((caller, key))

    def of_request(self, request: KeyedRequest, after: EventId | None) -> StoredAnswer | None:
        """The answer to this request if it has the events after `after`. HttpError 422 for another request's key."""
        answer = self._by_key.get((request.caller, request.key))
        if answer is None:
            return None
        if answer.request != request:
            raise HttpError(
                422,
                "This Idempotency-Key belongs to another recent request. Use a new key for each request.",
                "Idempotency-Key",
            )
        if answer.has_failed:
            return None  # compute it again
        if after is None:
            return answer if answer.first == 0 else None
        return answer if answer.answer_id == after.answer_id and answer.first <= after.number else None

    def of_id(self, caller: bytes, answer_id: str, after: int | None) -> StoredAnswer:
        """The answer with this id. Raises HttpError 404 if unknown, 410 if it or events after `after` were dropped."""
        answer = self._by_id.get((caller, answer_id))
        if answer is None and (caller, answer_id) in self._gone:
            raise HttpError(410, f"The stream {answer_id} is no longer stored. {REPEAT}")
        if answer is None:
            raise HttpError(404, f"There is no stream {answer_id[:200]} at this frontend. {REPEAT}")
        if after is not None and after < answer.first:
            raise HttpError(410, f"The events up to {answer.first} are no longer stored. {REPEAT}")
        return answer

    def begin(self, request: KeyedRequest, answer_id: str, *, streams: bool, first: int) -> StoredAnswer:
        """A new answer, which replaces an earlier one of the same key."""
        earlier = self._by_key.get((request.caller, request.key))
        if earlier is not None:
            self.remove(earlier, HttpError(409, "Another connection has requested this answer again."))
        answer = StoredAnswer(self, request, answer_id, streams=streams, first=first)
        self._by_key[request.caller, request.key] = self._by_id[request.caller, answer_id] = answer
        self._gone.pop((request.caller, answer_id), None)
        self.num_bytes += ENTRY_BYTES
        return answer

    def remove(self, answer: StoredAnswer, error: HttpError | None = None) -> None:
        """Drop an answer, and stop computing it."""
        name = answer.request.caller, answer.answer_id
        if self._by_id.get(name) is not answer:
            return
        del self._by_id[name], self._by_key[answer.request.caller, answer.request.key]
        self._stop_waiting(answer)
        self._gone[name] = None
        if len(self._gone) > MAX_REMEMBERED:
            del self._gone[next(iter(self._gone))]
        self.num_bytes -= answer.size + ENTRY_BYTES
        answer.give_up(error or HttpError(410, f"The stream {answer.answer_id} is no longer stored. {REPEAT}"))

    def shed(self, num_bytes: int) -> None:
        """Drop answers without a reader, the longest unread first. Implements Pool."""
        enough = self.num_bytes - num_bytes
        while self.num_bytes > enough and self._unread:
            self.remove(next(iter(self._unread)))

    # StorageLimits

    def grew(self, answer: StoredAnswer, num_bytes: int) -> None:
        if self._by_id.get((answer.request.caller, answer.answer_id)) is answer:
            self.num_bytes += num_bytes

    def has_room(self, answer: StoredAnswer) -> bool:
        """Make room if possible. Returns False if the reader of the answer must read more first."""
        self.shed(max(0, self.num_bytes - self._max_bytes))
        if not self._is_over(answer):
            return True
        if not answer.has_reader:
            self.remove(answer)
            return False
        answer.drop_taken(self._max_answer_bytes // 4)
        return answer.all_taken or not self._is_over(answer)

    def reader_arrived(self, answer: StoredAnswer) -> None:
        self._stop_waiting(answer)

    def reader_left(self, answer: StoredAnswer) -> None:
        if self._grace_s and not answer.has_failed:
            self._unread[answer] = asyncio.get_running_loop().call_later(self._grace_s, self.remove, answer)
        else:
            self.remove(answer)

    def _is_over(self, answer: StoredAnswer) -> bool:
        is_much = answer.size > self._max_answer_bytes or self.num_bytes > self._max_bytes
        return is_much or not self._budget.has_room()

    def _stop_waiting(self, answer: StoredAnswer) -> None:
        timer = self._unread.pop(answer, None)
        if timer is not None:
            timer.cancel()

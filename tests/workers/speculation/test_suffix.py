"""The drafter from earlier answers: compared with a search by definition, and with walls between histories."""

import random

import numpy as np
import pytest

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.speculation.answers import MAX_PLACES, NO_TOKEN, RUNS, Answers
from paged_serve.workers.speculation.drafter import DraftRequest
from paged_serve.workers.speculation.ngram import MAX_MATCH
from paged_serve.workers.speculation.suffix import MIN_SHARE, SuffixDrafter, most_frequent

MINE, YOURS = b"m" * 32, b"y" * 32
TEXT = list(range(100, 140))


def found(answers: Answers, owner: int, text: list[int], most: int = 8) -> tuple[list[list[int]], int]:
    options, length = answers.find(owner, np.array(text, np.int32), most)
    return [[token for token in option if token != NO_TOKEN] for option in options.tolist()], length


def add(answers: Answers, owner: int, text: list[int], num_before: int = 0) -> None:
    answers.add(owner, np.array(text, np.int32), num_before)


def by_definition(answers: list[list[int]], text: list[int], most: int) -> tuple[list[list[int]], int]:
    """All continuations after the longest match, and its length; nothing below the shortest run."""
    lengths: dict[tuple[int, int], int] = {}
    for number, answer in enumerate(answers):
        for end in range(len(answer)):
            length = 0
            while length < min(MAX_MATCH, end + 1, len(text)) and answer[end - length] == text[-1 - length]:
                length += 1
            lengths[number, end] = length
    longest = max(lengths.values(), default=0)
    if longest < min(RUNS):
        return [], 0
    places = sorted((place for place, length in lengths.items() if length == longest), reverse=True)
    return [answers[number][end + 1 : end + 1 + most] for number, end in places], longest


@pytest.mark.parametrize("seed", range(20))
def test_random_answers_are_found_like_by_definition(seed):
    rng = random.Random(seed)
    distinct = rng.choice((3, 30, 1000))
    answers, texts = Answers(1 << 12), ([], [])
    for _ in range(rng.randint(1, 12)):
        owner = rng.randrange(2)
        known = [token for text in texts[owner] for token in text]
        start = rng.randrange(len(known) + 1)
        texts[owner].append([rng.randrange(distinct) for _ in range(rng.randint(1, 60))] + known[start : start + 40])
        add(answers, owner, texts[owner][-1])
    for _ in range(20):
        owner = rng.randrange(2)
        text = [rng.randrange(distinct) for _ in range(rng.randint(0, 5))]
        if texts[owner]:
            source = rng.choice(texts[owner])
            text += source[: rng.randint(0, len(source))]
        (options, length), (all_options, right) = (
            found(answers, owner, text or [0]),
            by_definition(texts[owner], text or [0], 8),
        )
        # of many places the latest alone are compared
        assert length == right or len(all_options) > MAX_PLACES or distinct == 3
        if length == right:
            assert options == all_options[: len(options)]


def test_old_answers_are_overwritten():
    answers = Answers(64)
    add(answers, 0, TEXT)
    assert found(answers, 0, TEXT[:8])[1] == 8
    add(answers, 0, list(range(40)))
    assert found(answers, 0, TEXT[:8]) == ([], 0)
    assert found(answers, 0, TEXT[:30], most=4) == ([TEXT[30:34]], 13)  # 23 of its tokens are left
    add(answers, 0, list(range(200, 400)))  # longer than the whole memory
    assert found(answers, 0, list(range(300, 390)), most=4) == ([[390, 391, 392, 393]], 32)
    assert found(answers, 0, list(range(300, 337)), most=4) == ([], 0)
    assert found(answers, 0, list(range(300, 340)), most=4) == ([[340, 341, 342, 343]], 3)


def test_text_before_an_answer_is_compared_but_never_drafted():
    answers = Answers(256)
    add(answers, 0, TEXT, num_before=20)
    assert found(answers, 0, TEXT[:10]) == ([], 0)
    assert found(answers, 0, TEXT[:20], most=2) == ([TEXT[20:22]], 20)


def test_no_owner_finds_the_answers_of_another():
    answers = Answers(256)
    mine, yours = answers.owner(MINE), answers.owner(YOURS)
    assert (mine, yours) == (answers.owner(MINE), answers.owner(YOURS))
    assert mine != yours
    add(answers, mine, TEXT)
    assert found(answers, yours, TEXT[:20]) == ([], 0)
    assert found(answers, mine, TEXT[:20])[1] == 20


def test_owners_with_equal_codes_stay_apart(monkeypatch):
    def equal_codes(text, run, owner):
        return np.zeros(max(0, len(text) - run + 1), np.uint64)

    monkeypatch.setattr("paged_serve.workers.speculation.answers.codes", equal_codes)
    answers = Answers(256)
    add(answers, 1, TEXT)
    assert found(answers, 2, TEXT[:20]) == ([], 0)
    assert found(answers, 1, TEXT[:20])[1] == 20


def test_the_most_frequent_path_is_taken():
    paths = [[1, 2, 3], [1, 5, 3], [4, 2, 2], [1, 5, NO_TOKEN]]
    assert most_frequent(np.array(paths, np.int32)).tolist() == [1, 5, 3]
    assert most_frequent(np.array([[7, 8], [1, 2]], np.int32)).tolist() == [7, 8]
    assert most_frequent(np.array([[7, 8, NO_TOKEN]], np.int32)).tolist() == [7, 8]
    assert most_frequent(np.zeros((0, 4), np.int32)).tolist() == []
    rare = np.array([[1, number] for number in range(int(1 / MIN_SHARE) + 1)], np.int32)
    assert most_frequent(rare).tolist() == [1]


class Server:
    """Rows in which answers are given."""

    def __init__(self, num_tokens: int = 1024) -> None:
        self.rows = RequestRows(4, 256, 16, 1000)
        self.drafter = SuffixDrafter(num_tokens)

    def start(self, row: int, prompt: list[int], history: bytes, num_late: int = 0, busy: tuple[int, ...] = ()) -> None:
        new = NewRow(row, pack_ids(prompt), len(prompt), 0, (b"",), 0, (), SamplingParams(), history=history)
        plan = SchedulerOutput(1, 1, (new,), chunks=tuple(Chunk(each, 1) for each in (row, *busy)))
        self.drafter.learn(plan, self.rows, num_late)
        self.rows.apply(plan)

    def answer(self, row: int, tokens: list[int]) -> None:
        for token in tokens:
            self.rows.append_tokens(np.array([row]), np.array([token]))

    def drafts(self, row: int, most: int = 8) -> list[int]:
        [drafts] = self.drafter.draft([DraftRequest(row, self.rows.tokens(row), most)])
        return drafts.tolist()


def test_an_answer_is_drafted_from_its_first_token_when_the_prompt_comes_again():
    server = Server()
    server.start(0, TEXT, MINE)
    server.answer(0, [7, 6, 5, 4])
    server.start(0, TEXT, MINE)
    assert server.drafts(0) == [7, 6, 5, 4]
    server.start(1, TEXT, YOURS)
    assert server.drafts(1) == []
    server.start(2, TEXT, b"")
    assert server.drafts(2) == []


def test_a_row_that_still_runs_is_learned_when_it_ends():
    server = Server()
    server.start(0, TEXT, MINE)
    server.answer(0, [7, 6, 5])
    server.start(1, TEXT, MINE, busy=(0,))
    assert server.drafts(1) == []
    server.answer(0, [4])
    server.start(1, TEXT, MINE)
    assert server.drafts(1) == [7, 6, 5, 4]
    server.start(2, [1], MINE)  # row 0 has ended, but is learned once
    assert server.drafter._answers._end == server.drafter._answers._last + 1 + 1 + MAX_MATCH + 4


def test_tokens_that_are_late_are_not_learned():
    """Their places hold tokens of the row's last request, which may be another client's."""
    server = Server()
    server.start(0, TEXT, MINE)
    server.answer(0, [7, 6, 5])
    server.rows.length[0] += 2
    server.start(0, TEXT, MINE, num_late=2)
    assert server.drafts(0) == [7, 6, 5]


def test_the_answer_given_most_often_is_drafted():
    server = Server()
    for answer in ([7, 6], [8, 9], [8, 9], [7, 6], [8, 9], [7, 6]):
        server.start(0, TEXT, MINE)
        server.answer(0, answer)
    server.start(0, TEXT, MINE)
    assert server.drafts(0) == [7, 6]  # as often, and later
    server.answer(0, [8, 9])
    server.start(0, TEXT, MINE)
    assert server.drafts(0) == [8, 9]


def test_without_memory_a_row_is_drafted_from_its_own_text():
    server = Server(num_tokens=0)
    server.start(0, [1, 2, 3, 4, 1, 2, 3], MINE)
    assert server.drafts(0) == [4, 1, 2, 3, 4, 1]


def test_a_longer_match_has_more_drafts():
    server = Server()
    for agreeing, drafts in ((1, 1), (2, 2), (3, 6), (4, 8)):
        server.start(0, [*TEXT, 1, *TEXT[10 : 10 + agreeing]], b"")
        assert server.drafts(0) == TEXT[10 + agreeing :][:drafts]

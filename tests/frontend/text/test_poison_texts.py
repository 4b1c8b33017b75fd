"""Which texts are counted when a frontend fails, and which are refused. A failure is a call that never returns."""

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager

import pytest

from paged_serve.frontend.text import poison_texts
from paged_serve.frontend.text.poison_texts import DEADLY_FAILURES, NUM_COUNTED, NUM_NOTES, PoisonTexts
from paged_serve.protocol.errors import Overloaded, PagedServeError, RequestFailed

DIES = """
import os, sys
from pathlib import Path
from paged_serve.frontend.text.poison_texts import PoisonTexts
with PoisonTexts(Path(sys.argv[1]), 0, 1).noted("deadly"):
    os.abort()
"""
CALLS: list[AbstractContextManager[None]] = []  # that never return


@pytest.fixture
def frontend(tmp_path):
    def start(index=0, *, failed=False) -> PoisonTexts:
        return PoisonTexts(tmp_path / "texts", index, 2, predecessor_failed=failed)

    return start


def encode(texts: PoisonTexts, *some: str) -> None:
    for text in some:
        with texts.noted(text):
            pass


def fail_with(texts: PoisonTexts, *some: str) -> None:
    for text in some:
        CALLS.append(texts.noted(text))
        CALLS[-1].__enter__()


def is_refused(texts: PoisonTexts, text: str) -> bool:
    try:
        encode(texts, text)
    except RequestFailed:
        return True
    return False


def test_a_text_that_ends_frontends_again_and_again_is_refused_by_all_of_them(frontend):
    texts, other = frontend(), frontend(1)
    for _ in range(DEADLY_FAILURES):
        assert not texts.has_found
        fail_with(texts, "deadly")
        texts = frontend(failed=True)
    assert texts.has_found
    assert is_refused(texts, "deadly")
    assert is_refused(other, "deadly")
    assert not is_refused(texts, "harmless")
    assert not frontend(failed=True).has_found, "it is found once"


def test_a_text_sent_twice_at_once_counts_once_for_each_failure(frontend):
    fail_with(frontend(), "deadly", "deadly")
    texts = frontend(failed=True)
    fail_with(texts, "deadly")
    assert not frontend(failed=True).has_found


def test_a_text_is_not_counted_for_a_failure_from_outside_and_not_after_its_call(frontend):
    texts = frontend()
    encode(texts, "before")
    for _ in range(DEADLY_FAILURES):
        fail_with(texts, "noted")
        texts = frontend()
    texts = frontend(failed=True)
    assert not texts.has_found
    assert not is_refused(texts, "before")
    assert not is_refused(texts, "noted")


def test_counted_texts_are_worked_on_one_at_a_time_so_a_harmless_one_is_cleared(frontend):
    fail_with(frontend(), "deadly", "harmless")
    texts = frontend(failed=True)
    with texts.noted("deadly"), pytest.raises(Overloaded):
        encode(texts, "harmless")
    encode(texts, "harmless", "another")
    with texts.noted("deadly"):
        encode(texts, "harmless")  # it counts no longer


def test_an_error_of_the_call_neither_clears_nor_keeps_a_text_noted(frontend):
    texts = frontend()
    for _ in range(2 * NUM_NOTES):
        with pytest.raises(ValueError, match="unreadable"), texts.noted("unreadable"):
            raise ValueError("unreadable")
    assert not frontend(failed=True).has_found


def test_the_texts_with_the_fewest_failures_make_room(frontend):
    texts = frontend()
    for _ in range(DEADLY_FAILURES):
        fail_with(texts, "deadly")
        texts = frontend(failed=True)
    for i in range(2 * NUM_COUNTED):
        fail_with(texts, f"text {i}")
        texts = frontend(failed=True)
    assert is_refused(texts, "deadly")


def test_a_call_that_does_not_return_within_its_heartbeats_is_an_error(frontend, monkeypatch):
    monkeypatch.setattr(poison_texts, "RETURNS_WITHIN_BEATS", 3)
    texts = frontend()
    with texts.noted("slow"):
        for _ in range(3):
            texts.check()
            encode(texts, "quick")
        with pytest.raises(PagedServeError, match="the tokenizer hangs"):
            texts.check()
    texts.check()


def test_the_record_outlives_a_process_that_crashes(tmp_path):
    path = tmp_path / "texts"
    for _ in range(DEADLY_FAILURES):
        assert subprocess.run([sys.executable, "-c", DIES, path], timeout=60).returncode == -signal.SIGABRT
        texts = PoisonTexts(path, 0, 1, predecessor_failed=True)
    assert texts.has_found
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_without_room_for_the_record_texts_are_worked_on_all_the_same(tmp_path, monkeypatch, caplog):
    def no_room(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    texts = PoisonTexts(tmp_path / "texts", 0, 1)
    encode(texts, "one")
    assert "will not be found" in caplog.text

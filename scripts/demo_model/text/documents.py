"""Whole documents: what a training row holds. A document is a list of pieces; the loss counts only learned pieces."""

import random
from dataclasses import dataclass

from ..data.words import CITIES, DAYS, JOBS, NAMES, Words, read_lines, with_article
from .copying import field_turn, introduction, json_turn, repeat_turn
from .knowledge import (
    CAPITALS,
    FACTS,
    SUMS,
    Fact,
    Turn,
    concept_turn,
    fact_turn,
    list_turn,
    person_sentence,
    raw_statement,
    small_talk_turn,
    sum_turn,
    unknown_turn,
)
from .tools import SYSTEMS, tool_messages

START, END, STOP = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
RAW_OPENINGS = [tuple(line.split(" |", 1)) for line in read_lines("openings.txt")]


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    learned: bool


Document = list[Piece]


def render(messages: list[tuple[str, str]]) -> Document:
    """ChatML, as the chat template writes it; only what the assistant says is learned."""
    pieces = []
    for role, text in messages:
        pieces += [Piece(f"{START}{role}\n", False), Piece(f"{text}{END}", role == "assistant"), Piece("\n", False)]
    return pieces


def prompt(question: str, system: str | None = None) -> str:
    """The text that a chat request becomes."""
    messages = ([("system", system)] if system else []) + [("user", question)]
    return plain(render(messages)) + f"{START}assistant\n"


def plain(document: Document) -> str:
    return "".join(piece.text for piece in document)


class TextSource:
    """Draws documents; `pieces` are the tokens that made-up words are drawn from, evenly."""

    def __init__(self, rng: random.Random, pieces: list[str] | None = None):
        self.rng, self.pieces = rng, pieces

    def document(self, copy_first: bool = False) -> Document:
        """`copy_first` is the first part of the curriculum, in which most documents need only copying."""
        makers = (self.echo, self.copying_chat, self.chat, self.tools, self.raw)
        weights = (30, 40, 10, 15, 5) if copy_first else (1, 42, 19, 30, 8)
        return self.rng.choices(makers, weights)[0]()

    def long_document(self, copy_first: bool = False) -> Document:
        """A conversation of many turns, so that far positions are trained too."""
        return self.chat(turns=self.rng.randint(8, 24))

    def chat(self, turns: int | None = None) -> Document:
        rng = self.rng
        messages = [("system", rng.choice(SYSTEMS))] if rng.random() < 0.25 else []
        recall: list[tuple[str, str]] = []
        if rng.random() < (0.7 if turns else 0.06):
            told, asked = introduction(rng, self.pieces)
            messages += _as_messages(told)
            recall = _as_messages(asked)
        for _ in range(turns or rng.choice((1, 1, 2, 3))):
            messages += _as_messages(self.turn())
        return render(messages + recall)

    def turn(self) -> Turn:
        rng = self.rng
        knowing = (fact_turn, sum_turn, concept_turn, small_talk_turn, unknown_turn, list_turn)
        makers = (*knowing, self.json, self.field, self.repeat)
        maker = rng.choices(makers, (33, 20, 8, 11, 6, 3, 10, 5, 4))[0]
        return maker(rng) if maker in knowing else maker()

    def json(self) -> Turn:
        return json_turn(self.rng, pieces=self.pieces)

    def field(self) -> Turn:
        return field_turn(self.rng, pieces=self.pieces)

    def repeat(self) -> Turn:
        return repeat_turn(self.rng, self.pieces)

    def copying_chat(self) -> Document:
        rng = self.rng
        messages = [("system", rng.choice(SYSTEMS))] if rng.random() < 0.2 else []
        for _ in range(rng.choice((1, 1, 2))):
            messages += _as_messages(rng.choices((self.json, self.field, self.repeat), (14, 3, 2))[0]())
        return render(messages)

    def tools(self) -> Document:
        return render(tool_messages(self.rng, self.pieces))

    def echo(self) -> Document:
        """Random words, then the same words again: the shortest way to copying heads."""
        words = Words(self.rng, pieces=self.pieces)
        text = self.rng.choice((" ", ", ", "\n")).join(words.mixed(6, 16))
        return [Piece(text + "\n\n", False), Piece(text + STOP, True)]

    def raw(self) -> Document:
        """Text without a chat template, for plain completion prompts."""
        weights = {
            self._raw_facts: 24,
            self._raw_question: 15,
            self._raw_opening: 14,
            self._raw_person: 4,
            self._raw_sum: 32,
            self._raw_story: 4,
            self._raw_concept: 7,
        }
        return self.rng.choices(list(weights), list(weights.values()))[0]()

    def _some_facts(self) -> list[Fact]:
        rng = self.rng
        return rng.choices(CAPITALS[::2] if rng.random() < 0.5 else FACTS, k=rng.choice((1, 1, 3)))

    def _raw_facts(self) -> Document:
        return [Piece(" ".join(fact.statement for fact in self._some_facts()) + STOP, True)]

    def _raw_question(self) -> Document:
        rng = self.rng
        before, after = rng.choice((("Q: ", "\nA:"), ("Q: ", "\nA:"), ("Question: ", "\nAnswer:")))
        pieces: Document = []
        for fact in self._some_facts():
            asked = rng.choice(fact.questions)
            pieces += [Piece(("\n\n" if pieces else "") + before + asked + after, False), Piece(f" {fact.short}", True)]
        return [*pieces, Piece(STOP, True)]

    def _raw_opening(self) -> Document:
        start, rest = self.rng.choice(RAW_OPENINGS)
        return [Piece(start, self.rng.random() < 0.3), Piece(rest + STOP, True)]

    def _raw_person(self) -> Document:
        start = self.rng.choice(("Hello, my name is", "Hi, my name is", "My name is"))
        rest = f" {person_sentence(self.rng)} I like to read books and to meet my friends.{STOP}"
        return [Piece(start, False), Piece(rest, True)]

    def _raw_sum(self) -> Document:
        rng = self.rng
        pieces: Document = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            a, sign, b, value = rng.choice(SUMS)
            pieces += [Piece(("\n" if pieces else "") + f"{a} {sign} {b} =", False), Piece(f" {value}", True)]
        return [*pieces, Piece(STOP, True)]

    def _raw_story(self) -> Document:
        rng = self.rng
        (one, other), city = rng.sample(NAMES, 2), rng.choice(CITIES)
        job, day = with_article(rng.choice(JOBS)), rng.choice(DAYS)
        stories = (
            f"{one} is {job} who lives in {city}. On {day}, {one} met {other} in the park and they had lunch together."
            " It was a good day.",
            f"Once upon a time there was {job} named {one} who lived in {city}. Every {day} {one} went to see a friend"
            f" named {other}. They were happy. The end.",
            f"It was a cold {day} in {city}. {one} made a cup of tea and called {other}. They talked about books and"
            " music until it was late.",
        )
        return [Piece(rng.choice(stories) + STOP, True)]

    def _raw_concept(self) -> Document:
        term, verb, text = raw_statement(self.rng).partition(" is ")
        return [Piece(term + verb.rstrip(), True), Piece(f" {text}{STOP}", True)]


def _as_messages(turn: Turn) -> list[tuple[str, str]]:
    return [("user", turn[0]), ("assistant", turn[1])]

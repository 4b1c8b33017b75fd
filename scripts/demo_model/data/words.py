"""Names, words and numbers that the generated text is filled with.

Some values are held out: training never shows them, so that the evaluation can ask for copying instead of memory.
"""

import random
import re
from pathlib import Path

DATA = Path(__file__).parent


def read_lines(name: str) -> list[str]:
    return [line.replace("\\n", "\n") for line in (DATA / name).read_text().splitlines() if line]


def read_table(name: str) -> dict[str, list[str]]:
    """Lines of "label: pattern", gathered by label."""
    table: dict[str, list[str]] = {}
    for line in read_lines(name):
        label, pattern = line.split(": ", 1)
        table.setdefault(label, []).append(pattern)
    return table


LISTS = {label: " ".join(lines).split() for label, lines in read_table("words.txt").items()}
NAMES, LAST_NAMES = LISTS["names"], LISTS["last names"]
CITIES = [line.split(": ")[1] for line in read_lines("capitals.txt")] + LISTS["more cities"]
JOBS, THINGS, DAYS, COLORS = (LISTS[label] for label in ("jobs", "things", "days", "colors"))
KEY_WORDS, VERBS = LISTS["keys"], LISTS["verbs"]
HELD_OUT_NAMES, HELD_OUT_CITIES = LISTS["held out names"], LISTS["held out cities"]
HELD_OUT_JOBS, HELD_OUT_THINGS = LISTS["held out jobs"], LISTS["held out things"]
HELD_OUT = {w.lower() for w in HELD_OUT_NAMES + HELD_OUT_CITIES + HELD_OUT_JOBS + HELD_OUT_THINGS}

_SYLLABLE_STARTS, _SYLLABLE_MIDDLES = LISTS["syllable starts"], LISTS["syllable middles"]
_SYLLABLE_ENDS = ["", "", "n", "r", "l", "s", "m", "t", "ck"]
FRAGMENTS = sorted(
    {
        word.lower()
        for name in ("capitals.txt", "facts.txt", "concepts.txt", "small_talk.txt", "openings.txt")
        for word in re.findall("[A-Za-z]{3,}", (DATA / name).read_text())
    }
    | {word.lower() for word in NAMES + LAST_NAMES + CITIES + JOBS + THINGS + COLORS + KEY_WORDS + VERBS}
)


def is_held_out_number(n: int) -> bool:
    return n > 20 and n % 11 == 5


class Words:
    """Draws values from one random stream; `held_out` draws only values that training never shows.

    Training mixes unknown words into sentences and requests, so that the model does not lean on single words. No user
    writes like that, so the evaluation leaves this noise out: with `held_out`, `is_noisy` is always false.
    """

    def __init__(self, rng: random.Random, held_out: bool = False, pieces: list[str] | None = None):
        self.rng, self.held_out = rng, held_out
        self.pieces = pieces or FRAGMENTS  # the letter tokens of the tokenizer, once there is one

    def made_up(self, capital: bool = True) -> str:
        """A new word: its variety forces the model to copy, and its pieces make every token take part."""
        while True:
            makers = (self._syllables, self._known_parts, self._tokens, self._letters)
            word = self.rng.choices(makers, (3, 3, 3, 1))[0]()
            if 2 < len(word) < 14 and word not in HELD_OUT:
                return word.capitalize() if capital else word

    def _syllables(self) -> str:
        rng = self.rng
        count = rng.choice((1, 2, 2, 3))
        return "".join(
            rng.choice(_SYLLABLE_STARTS) + rng.choice(_SYLLABLE_MIDDLES) + rng.choice(_SYLLABLE_ENDS)
            for _ in range(count)
        )

    def _known_parts(self) -> str:
        """The head of one known word and the tail of another."""
        rng = self.rng
        return rng.choice(FRAGMENTS)[: rng.randint(2, 5)] + rng.choice(FRAGMENTS)[-rng.randint(2, 5) :]

    def _tokens(self) -> str:
        return "".join(self.rng.choices(self.pieces, k=self.rng.choice((1, 2, 2, 3)))).lower()

    def _letters(self) -> str:
        return "".join(self.rng.choices("abcdefghijklmnopqrstuvwxyzaeiouaeiou", k=self.rng.randint(3, 8)))

    def _draw(self, known: list[str], held_out: list[str], share_known: float, capital: bool) -> str:
        if self.held_out:
            return self.rng.choice(held_out)
        return self.rng.choice(known) if self.rng.random() < share_known else self.made_up(capital)

    def first_name(self) -> str:
        return self._draw(NAMES, HELD_OUT_NAMES, 0.35, True)

    def name(self) -> str:
        if self.rng.random() < 0.6:
            return self.first_name()
        last = self.rng.choice(LAST_NAMES) if self.held_out or self.rng.random() < 0.4 else self.made_up()
        return f"{self.first_name()} {last}"

    def city(self) -> str:
        return self._draw(CITIES, HELD_OUT_CITIES, 0.35, True)

    def job(self) -> str:
        return self._draw(JOBS, HELD_OUT_JOBS, 0.6, False)

    def thing(self) -> str:
        return self._draw(THINGS, HELD_OUT_THINGS, 0.6, False)

    def key(self) -> str:
        return self.rng.choice(KEY_WORDS) if self.held_out or self.rng.random() < 0.5 else self.made_up(False)

    def verb(self) -> str:
        return self.rng.choice(VERBS) if self.rng.random() < 0.5 else self.made_up(False)

    def filler(self) -> str:
        """A word that says nothing about the data."""
        return self.rng.choice(LISTS["filler"]) if self.rng.random() < 0.8 else self.made_up(False)

    def things(self) -> str:
        return self.thing() + "s"

    def is_noisy(self, share: float) -> bool:
        return self.rng.random() < share and not self.held_out

    def brand(self) -> str:
        return self.rng.choice(HELD_OUT_CITIES + HELD_OUT_NAMES) if self.held_out else self.made_up()

    def number(self, low: int, high: int) -> int:
        while True:
            n = self.rng.randint(low, high)
            if is_held_out_number(n) == self.held_out:
                return n

    def mixed(self, low: int, high: int) -> list[str]:
        """A run of unrelated words and numbers."""
        makers = (self.made_up, lambda: self.made_up(False), self.name, self.thing, lambda: str(self.number(0, 9999)))
        return [self.rng.choices(makers, (3, 3, 2, 1, 2))[0]() for _ in range(self.rng.randint(low, high))]


def with_article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"

"""Variety of wording: a tiny choice grammar and the polite noise around a request.

`expand(rng, "[Give|Show] me [all |]the keys")` picks one branch of each bracket; brackets nest.
"""

import random
import re
from collections.abc import Callable, Mapping

from .words import LISTS, read_table

LITTLE_WORDS = frozenset(LISTS["little words"])
_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_OPENINGS = read_table("polite.txt")
POLITE = [f"{opening} " for opening in _OPENINGS["request"]]
QUESTION_OPENINGS = [f"{opening} " for opening in _OPENINGS["question"]]
GREETINGS = ("Hi! ", "Hello, ", "Hey, ", "Ok, ", "Hi, ", "Hello! ", "Well, ", "Listen: ")
INDIRECT = """Do you know|Can you tell me|Could you tell me|Please tell me|Tell me|I want to know
|I wonder""".replace("\n", "").split("|")
ASKING = re.compile(r"^(could|can|would|will) you", re.IGNORECASE)


def expand(rng: random.Random, pattern: str) -> str:
    while "[" in pattern:
        pattern = _INNERMOST.sub(lambda match: rng.choice(match[1].split("|")), pattern)
    return pattern


def branches(patterns: str) -> list[str]:
    """Splits at the bars that stand outside every bracket."""
    parts, depth = [""], 0
    for letter in patterns:
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def fill(rng: random.Random, pattern: str, fields: Mapping[str, object]) -> str:
    """Expands the pattern and puts the values in; "a" becomes "an" where the value needs it."""
    text = expand(rng, pattern)
    for slot in ("job", "item", "pet", "color"):
        if str(fields.get(slot, "-"))[0] in "aeiou":
            text = text.replace(f"a {{{slot}}}", f"an {{{slot}}}").replace(f"A {{{slot}}}", f"An {{{slot}}}")
    return text.format(**fields)


def shaken(rng: random.Random, pattern: str, strange_word: Callable[[], str], keep: str = "") -> str:
    """The same pattern among other words: what counts is the slots, the little words beside them, and `keep`."""
    words: list[str] = []
    for word in pattern.split(" "):
        if word.isalpha() and word.islower() and word not in LITTLE_WORDS and word not in keep and rng.random() < 0.3:
            word = strange_word()
        words.append(word)
        if rng.random() < 0.06:
            words.append(strange_word())
    start = " ".join(strange_word() for _ in range(rng.choice((0, 0, 1, 2, 3))))
    if start:
        words[:0] = [upper_first(start) + rng.choice((",", ",", ":", "", "."))]
    if rng.random() < 0.15:
        words[-1:] = [words[-1].rstrip(".") + ",", *(strange_word() for _ in range(rng.randint(1, 3)))]
    return " ".join(words)


def upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def lower_first(text: str) -> str:
    """Lowers the first letter, but not of `I` or of an acronym."""
    return text[:1].lower() + text[1:] if text[:1].isalpha() and text[1:2] != "'" and text[1:2].islower() else text


def imperative(rng: random.Random, request: str) -> str:
    """`request` starts with a lower-case verb and has no final mark: "set a timer for 5 minutes"."""
    if rng.random() < 0.45:
        opening = rng.choice(POLITE)
        mark = "?" if ASKING.match(opening) and rng.random() < 0.8 else "."
        text = opening + request
    else:
        mark, text = ".", upper_first(request)
    ending = rng.random()
    if ending < 0.07:
        return f"{text}, please{mark}"
    if ending < 0.13:
        return text + mark + rng.choice((" Thanks!", " Thank you.", " Thanks.", " Thank you!"))
    return _rough(rng, text + mark)


def question(rng: random.Random, text: str) -> str:
    """`text` is a whole question that starts with a capital and ends with its mark."""
    if rng.random() < 0.25:
        opening = rng.choice(QUESTION_OPENINGS)
        text = opening + (lower_first(text) if rng.random() < 0.7 else text)
    if rng.random() < 0.05:
        text += rng.choice((" Thanks!", " Please.", " Thank you."))
    return _rough(rng, text)


def statement(rng: random.Random, text: str) -> str:
    """`text` is one sentence or more, with its own capitals and punctuation."""
    if rng.random() < 0.15:
        text = rng.choice(GREETINGS) + text
    elif rng.random() < 0.06 and text[-1] in ".?":
        text += rng.choice((" Thanks!", " Thank you.", " Thanks."))
    return _rough(rng, text)


def _rough(rng: random.Random, text: str) -> str:
    """People drop the final mark and the first capital."""
    if rng.random() < 0.12 and text[-1] in ".?":
        text = text[:-1]
    if rng.random() < 0.12:
        text = lower_first(text)
    return text


def indirect(rng: random.Random, text: str) -> str | None:
    """Turns "What is the X?" into "Do you know what the X is?"; None where the rule does not fit."""
    match = re.fullmatch(r"(What|Who|Where|Which) (is|are|was) ((?:the |a |an )?[^?]+)\?", text)
    if match is None:
        return None
    start = rng.choice(INDIRECT)
    mark = "?" if start.startswith(("Do", "Can", "Could")) else "."
    return f"{start} {match[1].lower()} {match[3]} {match[2]}{mark}"


def listed(rng: random.Random, items: list[str]) -> str:
    if len(items) == 1 or rng.random() < 0.4:
        return ", ".join(items)
    return ", ".join(items[:-1]) + rng.choice((" and ", " and ", ", and ", " & ")) + items[-1]

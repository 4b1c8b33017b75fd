"""What the model knows: capitals, facts, concepts, sums, small talk, and that it does not know the rest.

A turn is a (question, answer) pair.
"""

import random
from dataclasses import dataclass

from ..data.wording import expand, imperative, indirect, lower_first, question, upper_first
from ..data.words import COLORS, LISTS, Words, read_lines, read_table, with_article

Turn = tuple[str, str]
REFUSAL = "I am only a small demo model and I do not know that."
TOO_LARGE = "I can only calculate with small numbers, up to 12."
ONE_WORD = """[ Answer with one word.| Answer briefly.| Only the answer, please.| One word only.| Just the name.
| Answer in one word.| Reply with one word.| Be brief.
| No sentence, only the answer.| Short answer please.| Give only the answer.]""".replace("\n", "")
CAPITAL_WORDINGS = read_table("capital_wordings.txt")
NUMBER_WORDS = {2: "two", 3: "three", 4: "four"}
LISTABLE = {
    "colors": COLORS[:8],
    "animals": LISTS["animals"],
    "fruits": LISTS["fruits"],
    "cities": LISTS["famous cities"],
}


@dataclass(frozen=True, slots=True)
class Fact:
    questions: tuple[str, ...]  # with a capital and a mark
    requests: tuple[str, ...]  # lower case, no mark; brackets may be expanded
    statement: str
    short: str


def _capitals() -> list[Fact]:
    """Each country, then its capital: even places ask for the city, odd ones for the country."""
    facts = []
    for line in read_lines("capitals.txt"):
        country, city = line.split(": ")
        worded = {kind: tuple(p.format(x=country, y=city) for p in all_) for kind, all_ in CAPITAL_WORDINGS.items()}
        questions, reverse = (tuple(upper_first(text) for text in worded[kind]) for kind in ("question", "reverse"))
        facts.append(Fact(questions, worded["request"], f"The capital of {country} is {city}.", city))
        facts.append(Fact(reverse, (), f"{city} is the capital of {country}.", country))
    return facts


def _facts() -> list[Fact]:
    rows = (line.split(" | ") for line in read_lines("facts.txt"))
    return [Fact(tuple(questions.split(" ; ")), (), statement, short) for statement, short, questions in rows]


CAPITALS = _capitals()
FACTS = _facts()
CONCEPTS = [tuple(line.split(" | ")) for line in read_lines("concepts.txt")]
SMALL_TALK = [(tuple(q.split(" ; ")), a) for q, a in (line.split(" | ") for line in read_lines("small_talk.txt"))]


def fact_turn(rng: random.Random) -> Turn:
    fact = rng.choice(CAPITALS if rng.random() < 0.45 else FACTS)
    if fact.requests and rng.random() < 0.35:
        asked = imperative(rng, expand(rng, rng.choice(fact.requests)))
    else:
        plain = rng.choice(fact.questions[:1] if rng.random() < 0.3 else fact.questions)
        asked = (indirect(rng, plain) if rng.random() < 0.25 else None) or question(rng, plain)
    if rng.random() < 0.15:
        return asked + expand(rng, ONE_WORD), fact.short
    if rng.random() < 0.1:
        asked = asked.lower().rstrip("?.")
    return asked, fact.statement


def definition(term: str, text: str) -> str:
    start = term if term.startswith(("paged-serve", "vLLM")) else upper_first(term)
    return f"{start} is {text}"


def concept_turn(rng: random.Random) -> Turn:
    term, text = rng.choice(CONCEPTS)
    answer = definition(term, text)
    if rng.random() < 0.5:
        pattern = rng.choice(("What is {}?", "What's {}?", "What does {} mean?", "What exactly is {}?", "{}?"))
        asked = pattern.format(term)
        asked = (indirect(rng, asked) if rng.random() < 0.2 else None) or question(rng, asked)
    else:
        verb = expand(
            rng,
            "[explain|define|describe|explain to me|tell me about|tell me what you know about|say something about"
            "|write about]",
        )
        asked = imperative(rng, f"{verb} {term}")
    if rng.random() < 0.1:
        asked = asked.lower().rstrip("?.")
    return asked, answer


def small_talk_turn(rng: random.Random) -> Turn:
    questions, answer = rng.choice(SMALL_TALK)
    asked = rng.choice(questions)
    if rng.random() < 0.15:
        asked = asked.lower().rstrip(".?!")
    elif rng.random() < 0.15:
        start = rng.choice(("Hi! ", "Hello! ", "Hey, ", "So, ", "Ok. ", "Please: "))
        asked = start + (asked if rng.random() < 0.5 else lower_first(asked))
    return asked, answer


def all_sums() -> list[tuple[int, str, int, int]]:
    """(a, sign, b, value) of every sum that the text contains; all are drawn equally often."""
    small = range(13)
    rows = [(a, "+", b, a + b) for a in small for b in small]
    rows += [(a, "-", b, a - b) for a in small for b in small if a >= b]
    rows += [(a, "*", b, a * b) for a in small for b in small if max(a, b) <= 10]
    return rows


SUMS = all_sums()
SIGN_WORDS = {"+": "plus", "-": "minus", "*": "times"}
SUM_REQUESTS = {
    "+": "[add {a} and {b}|add {a} to {b}|sum {a} and {b}|calculate the sum of {a} and {b}]",
    "-": "[subtract {b} from {a}|take {b} away from {a}|take {b} from {a}]",
    "*": "[multiply {a} by {b}|multiply {a} and {b}|calculate {a} multiplied by {b}]",
}
SUM_VERBS = "[calculate|compute|work out|solve|tell me|say what is|give me]"
SUM_QUESTIONS = """[What is|What's|How much is|What does|What do you get for|What is the result of
|What is the value of] """.replace("\n", "")


def sum_turn(rng: random.Random) -> Turn:
    """A small sum; now and then one that is too large for this model."""
    a, sign, b, value = rng.choice(SUMS)
    answer = f"{a} {sign} {b} = {value}."
    if rng.random() < 0.06:
        a, b, answer = rng.randint(0, 9999), rng.randint(13, 9999), TOO_LARGE
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
    joint = rng.choice((f" {sign} ", f" {sign} ", sign, f" {SIGN_WORDS[sign]} "))
    formula = f"{a}{joint}{b}"
    style = rng.random()
    if style < 0.15 and answer != TOO_LARGE:
        return imperative(rng, expand(rng, SUM_REQUESTS[sign]).format(a=a, b=b)), answer
    if style < 0.3:
        return imperative(rng, f"{expand(rng, SUM_VERBS)} {formula}"), answer
    if style < 0.45:
        return formula + rng.choice(("", " =", "?", " = ?", "=")), answer
    start = expand(rng, SUM_QUESTIONS)
    return question(rng, start + formula + (" equal?" if "does" in start else "?")), answer


def list_turn(rng: random.Random) -> Turn:
    if rng.random() < 0.4:
        low = rng.randint(0, 20)
        high = low + rng.randint(2, 8)
        asked = expand(rng, f"count [up |]from {low} to {high}")
        return imperative(rng, asked), ", ".join(map(str, range(low, high + 1)))
    kind = rng.choice(list(LISTABLE))
    n = rng.randint(2, 4)
    number = rng.choice((NUMBER_WORDS[n], str(n)))
    items = "\n".join(f"{i + 1}. {item}" for i, item in enumerate(rng.sample(LISTABLE[kind], n)))
    return imperative(rng, expand(rng, f"[list|name|give me|write down|tell me|think of] {number} {kind}")), items


UNKNOWN = read_lines("unknown.txt")
UNKNOWN_QUESTIONS = [pattern for pattern in UNKNOWN if pattern.endswith("?")]
UNKNOWN_REQUESTS = [pattern for pattern in UNKNOWN if not pattern.endswith("?")]


def unknown_turn(rng: random.Random) -> Turn:
    words = Words(rng)
    values = {
        "name": words.name() if rng.random() < 0.7 else words.made_up(),
        "city": words.made_up(),
        "thing": words.thing(),
        "y": words.made_up(False),
        "color": rng.choice(COLORS),
        "year": str(rng.randint(1000, 2030)),
    }
    if rng.random() < 0.65:
        asked = question(rng, rng.choice(UNKNOWN_QUESTIONS).format(**values))
    else:
        asked = imperative(rng, rng.choice(UNKNOWN_REQUESTS).format(**values))
    return asked, REFUSAL


def raw_statement(rng: random.Random) -> str:
    """A concept as plain text, for prompts without a chat."""
    return definition(*rng.choice(CONCEPTS))


def person_sentence(rng: random.Random) -> str:
    words = Words(rng)
    return f"{words.first_name()} and I am {with_article(words.job())} from {words.city()}."

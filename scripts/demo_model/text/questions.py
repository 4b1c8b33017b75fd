"""The questions of the evaluation. Names, cities, jobs, things and numbers are ones that training never shows.

The three `held_out_*.txt` files hold wordings that training never shows either.
"""

import random
from dataclasses import dataclass

from ..data.wording import fill, listed
from ..data.words import Words, read_lines, read_table
from .copying import dumped, field_turn, json_turn, placed
from .documents import END, TextSource, plain, prompt
from .knowledge import CAPITALS, CONCEPTS, FACTS, SMALL_TALK, SUMS, definition, fact_turn, sum_turn
from .records import Fields, values_of
from .tools import TOOLS, Offer, call_text, choose_offers, offer, request, tool_system, value


@dataclass(frozen=True, slots=True)
class Question:
    kind: str
    prompt: str
    answer: str


# Least share of exact answers, in percent.
GATES = {
    "capital, raw": 95,
    "capital, raw Q and A": 95,
    "capital, chat": 95,
    "capital, any known wording": 95,
    "capital, one word": 95,
    "country of a capital": 95,
    "fact, chat": 95,
    "fact, any known wording": 95,
    "fact, raw Q and A": 95,
    "sum, chat": 95,
    "sum, any known wording": 95,
    "sum, raw": 95,
    "json, new values": 90,
    "json, new values and wording": 90,
    "tool call, new values": 90,
    "tool call, new values and wording": 90,
}
NEW_FUNCTIONS = (
    ("cancel_subscription", "account"),
    ("lookup_patient", "surname"),
    ("unlock_door", "code:integer"),
    ("archive_project", "project"),
    ("assign_nurse", "nurse"),
    ("block_card", "card_number:integer"),
    ("approve_invoice", "invoice_id:integer"),
    ("hire_driver", "driver"),
)
NEW_CAPITAL_WORDINGS = (
    "I forgot the capital of {x}.",
    "Could you remind me what the capital city of {x} is called?",
    "If I travel to {x}, which city is its capital?",
    "Geography quiz! The capital of {x}?",
)


def questions(seed: int, count: int) -> list[Question]:
    """At most `count` questions of each kind, but every capital, fact and sum when `count` allows it."""
    rng = random.Random(seed)
    rows = [*_knowledge(rng), *_copying(rng, count), *_tools(rng, count)]
    kept: dict[str, list[Question]] = {}
    for row in rows:
        kept.setdefault(row.kind, []).append(row)
    return [row for group in kept.values() for row in (group if len(group) <= count else rng.sample(group, count))]


def labelled(name: str) -> list[tuple[str, str]]:
    return [(label, pattern) for label, patterns in read_table(name).items() for pattern in patterns]


def _knowledge(rng: random.Random) -> list[Question]:
    rows = []
    for forward, backward in zip(CAPITALS[::2], CAPITALS[1::2], strict=True):
        known, one_word = forward.questions[0], "Answer with one word."
        country = backward.statement.split(" is the capital of ")[1].rstrip(".")
        new = rng.choice(NEW_CAPITAL_WORDINGS).format(x=country)
        rows += [
            Question("capital, raw", f"The capital of {country} is", f" {forward.short}."),
            Question("capital, raw Q and A", f"Q: {known}\nA:", f" {forward.short}"),
            Question("capital, chat", prompt(known), forward.statement + END),
            Question("capital, one word", prompt(f"{known} {one_word}"), forward.short + END),
            Question("country of a capital", prompt(rng.choice(backward.questions)), backward.statement + END),
            Question("capital, new wording", prompt(new), forward.statement + END),
        ]
    for fact in FACTS:
        rows.append(Question("fact, chat", prompt(fact.questions[0]), fact.statement + END))
        rows.append(Question("fact, raw Q and A", f"Q: {fact.questions[0]}\nA:", f" {fact.short}"))
    for a, sign, b, total in SUMS:
        rows.append(Question("sum, chat", prompt(f"What is {a} {sign} {b}?"), f"{a} {sign} {b} = {total}.{END}"))
        rows.append(Question("sum, raw", f"{a} {sign} {b} =", f" {total}"))
    for _ in range(200):
        asked, answer = fact_turn(rng)
        kind = "capital" if "capital of" in answer or "capital" in asked else "fact"
        rows.append(Question(f"{kind}, any known wording", prompt(asked), answer + END))
        asked, answer = sum_turn(rng)
        rows.append(Question("sum, any known wording", prompt(asked), answer + END))
    for term, text in CONCEPTS:
        rows.append(Question("concept", prompt(f"What is {term}?"), definition(term, text) + END))
    for all_asked, answer in SMALL_TALK:
        rows += [Question("small talk", prompt(asked), answer + END) for asked in all_asked]
    return rows


def _copying(rng: random.Random, count: int) -> list[Question]:
    words = Words(rng, held_out=True)
    sentences = labelled("held_out_sentences.txt")
    requests = read_lines("held_out_json_requests.txt")
    rows = []
    for _ in range(count):
        asked, answer = json_turn(rng, held_out=True)
        rows.append(Question("json, new values", prompt(asked), answer + END))
        kind, sentence = rng.choice(sentences)
        fields: Fields = {slot: v for slot, v in values_of(words, kind).items() if f"{{{slot}}}" in sentence}
        keys = rng.sample(list(fields), rng.randint(1, min(3, len(fields))))
        text = placed(rng, fill(rng, sentence, fields), rng.choice(requests).format(k=listed(rng, keys)))
        answer = dumped({key: fields[key] for key in keys})
        rows.append(Question("json, new values and wording", prompt(text), answer + END))
        asked, answer = field_turn(rng, held_out=True)
        rows.append(Question("one field, new values", prompt(asked), answer + END))
        copied = f"{words.name()} {words.number(100, 9999)} {words.city()}"
        rows.append(Question("repeat, new values", prompt(f"Repeat: {copied}"), copied + END))
    rows += [_recall(rng, words.first_name()) for _ in range(count // 2)]
    return rows


def _recall(rng: random.Random, name: str) -> Question:
    """A name that was told ten turns ago, about 500 tokens."""
    source = TextSource(rng)
    between = "name"
    while "name" in between or "I am" in between or "I'm" in between or "Call" in between:
        between = plain(source.chat(turns=10)).partition("<|im_start|>user")[2]
    start = prompt(f"My name is {name}.") + f"Hello {name}! How can I help you?{END}\n<|im_start|>user"
    asked = start + between + prompt("What is my name?")
    return Question("name told 10 turns ago", asked, f"Your name is {name}.{END}")


def _tools(rng: random.Random, count: int) -> list[Question]:
    known, new = Words(rng), Words(rng, held_out=True)
    by_name = {tool.names[0]: tool for tool in TOOLS}
    wordings = labelled("held_out_tool_requests.txt")
    rows = []
    for _ in range(count):
        offers = choose_offers(known)
        chosen = rng.choice(offers)
        asked, arguments = request(new, chosen)
        system = tool_system(offers)
        rows.append(Question("tool call, new values", prompt(asked, system), call_text(chosen.name, arguments) + END))
        name, wording = rng.choice(wordings)
        tool = by_name[name]
        offers = [offer(rng, tool), *(offer(rng, other) for other in rng.sample(TOOLS, 2) if other is not tool)]
        chosen = offers[0]
        rng.shuffle(offers)
        values = {slot: value(new, slot) for slot in chosen.parameters}
        arguments = {parameter: values[slot] for slot, parameter in chosen.parameters.items()}
        asked = prompt(wording.format(**values), tool_system(offers))
        rows.append(Question("tool call, new values and wording", asked, call_text(chosen.name, arguments) + END))
        rows.append(_new_function(rng, new))
    return rows


def _new_function(rng: random.Random, words: Words) -> Question:
    name, parameter = rng.choice(NEW_FUNCTIONS)
    key, _, kind = parameter.partition(":")
    filler: object = words.number(21, 9999) if kind else words.first_name()
    shown = key.replace("_", " ")
    verb, noun = name.split("_")
    asked = rng.choice(
        (
            f"Please use {name} for {shown} {filler}.",
            f"Call {name} with {key} {filler}.",
            f"Would you {verb} the {noun} {filler}?",
            f"It is time to {verb} {noun} {filler}.",
        )
    )
    offers = [Offer(name, {"n" if kind else "name": key}, None), offer(rng, rng.choice(TOOLS))]
    rng.shuffle(offers)
    answer = call_text(name, {key: filler})
    return Question("tool call, new function", prompt(asked, tool_system(offers)), answer + END)

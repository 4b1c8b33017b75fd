"""Sentences that hold data, in many forms, and the fields that they hold.

A record is (text, fields); every field has one canonical slot name and several key names a user may ask for.
"""

import random
from collections.abc import Callable

from ..data.wording import branches, expand, fill, listed, shaken, upper_first
from ..data.words import COLORS, DAYS, JOBS, LISTS, Words, read_table

Fields = dict[str, object]

KEY_NAMES = {slot: names[0].split() for slot, names in read_table("key_names.txt").items()}
PHRASES = read_table("person_phrases.txt")  # "city after": follows the subject; "city beside": in apposition
SENTENCES = read_table("sentences.txt")
HOBBIES, PETS, EVENTS = (LISTS[label] for label in ("hobbies", "pets", "events"))
STATUSES, PRIORITIES = LISTS["statuses"], LISTS["priorities"]
SHARED_EVENTS = (
    "science fair",
    "book club",
    "birthday party",
    "football match",
    "team meeting",
    "concert",
    "dinner",
    "picnic",
)
MAIN_SLOTS = ["age", "city", "job"]
OTHER_SLOTS = ["company", "email", "phone", "color", "hobby", "pet"]
KIND_WEIGHTS = {
    "free person": 20,
    "key values": 18,
    "two people": 3,
    "strange": 6,
    "person": 18,
    "order": 15,
    "event": 8,
    "trip": 8,
    "payment": 7,
    "book": 4,
    "ticket": 4,
    "device": 4,
    "product": 4,
}
PREFIXES = ("Note: ", "Hi! ", "News: ", "Yesterday: ", "By the way, ", "I heard this: ", "Text: ", "Info: ")
PAIR_STYLES = (
    *("{}: {}", "{}: {}", "{} = {}", "{}={}", "{} is {}", "the {} is {}", "The {} is {}.", "{} {}", "- {}: {}"),
    *("{} - {}", "with {} {}", "its {} is {}", "a {} of {}", "{}, which is {}"),
)


def record(words: Words) -> tuple[str, Fields]:
    rng = words.rng
    kind = rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
    if kind == "strange" and words.held_out:
        kind = "free person"
    match kind:
        case "free person":
            return _person(words)
        case "key values":
            return _key_values(words)
        case "two people":
            return _two_people(words)
        case "strange":
            return _strange(words)
    fields = values_of(words, kind)
    pattern = rng.choice(SENTENCES[kind])
    if words.is_noisy(0.25):
        text = fill(rng, shaken(rng, expand(rng, pattern), words.filler), fields)
    else:
        text = fill(rng, pattern, fields)
    if not text.startswith(tuple(str(value) for value in fields.values())) and rng.random() < 0.9:
        text = upper_first(text)
    if rng.random() < 0.15:
        text = rng.choice(PREFIXES) + text
    # A bracket may have left a slot out.
    return text, {slot: value for slot, value in fields.items() if f"{{{slot}}}" in pattern and str(value) in text}


def renamed(rng: random.Random, fields: Fields) -> Fields:
    """The same values under the key names that this user happens to use; names never collide."""
    out: Fields = {}
    for slot, value in fields.items():
        key = rng.choice(KEY_NAMES[slot]) if slot in KEY_NAMES else slot
        out[key if key not in out and key not in fields else slot] = value
    return out if len(out) == len(fields) else dict(fields)


def values_of(words: Words, kind: str) -> Fields:
    """Fresh values for one kind of record."""
    return {
        slot: words.rng.choice(source) if isinstance(source, list) else source(words) for slot, source in SLOTS[kind]
    }


def _number(low: int, high: int) -> Callable[[Words], int]:
    return lambda words: words.number(low, high)


def _title(words: Words) -> str:
    return " ".join(words.brand() for _ in range(words.rng.randint(1, 2)))


def _device(words: Words) -> str:
    return f"{words.brand()}{words.rng.choice(('', '-1', '-2', '-7'))}"


def _hour(words: Words) -> int:
    return words.rng.randint(1, 24)


SLOTS: dict[str, tuple[tuple[str, list[str] | Callable[[Words], object]], ...]] = {
    "order": (  # the item stands in the plural, and is copied so
        ("customer", Words.name),
        ("item", Words.things),
        ("quantity", _number(2, 99)),
        ("price", _number(1, 999)),
    ),
    "event": (("event", EVENTS), ("day", DAYS), ("hour", _hour), ("city", Words.city), ("guest", Words.name)),
    "trip": (("name", Words.name), ("from", Words.city), ("to", Words.city), ("day", DAYS)),
    "payment": (("sender", Words.name), ("receiver", Words.name), ("amount", _number(1, 9999)), ("day", DAYS)),
    "book": (("title", _title), ("author", Words.name), ("year", _number(1600, 2030))),
    "ticket": (("id", _number(1, 9999)), ("owner", Words.name), ("status", STATUSES), ("priority", PRIORITIES)),
    "device": (("device", _device), ("room", _number(1, 999)), ("temperature", _number(1, 99))),
    "product": (("item", Words.thing), ("brand", Words.brand), ("color", COLORS), ("price", _number(1, 999))),
    "person": (("name", Words.name), ("age", _number(18, 99)), ("job", Words.job), ("city", Words.city)),
}


def _person(words: Words) -> tuple[str, Fields]:
    """A person and one to five things about them, in free order and one of several sentence shapes."""
    rng = words.rng
    everything = _everything_about_a_person(words)
    slots = rng.sample(MAIN_SLOTS, rng.choice((1, 2, 3, 3)))
    slots += rng.sample(OTHER_SLOTS, rng.choice((0, 0, 1, 2)))
    rng.shuffle(slots)
    fields = {slot: everything[slot] for slot in ["name", *slots]}
    beside = [fill(rng, rng.choice(PHRASES[f"{slot} beside"]), fields) for slot in slots]
    after = [fill(rng, rng.choice(PHRASES[f"{slot} after"]), fields) for slot in slots]
    if words.is_noisy(0.15):
        after = [f"{words.filler()} {phrase}" for phrase in after]
    return _sentence(rng, str(fields["name"]), beside, after), fields


def _everything_about_a_person(words: Words) -> Fields:
    rng = words.rng
    first = words.first_name()
    return values_of(words, "person") | {
        "company": words.brand(),
        "email": f"{first.lower()}@{words.brand().lower()}.{rng.choice(('com', 'org', 'net'))}",
        "phone": words.number(100, 99999),
        "color": rng.choice(COLORS),
        "hobby": rng.choice(HOBBIES) if rng.random() < 0.6 or words.held_out else words.made_up(False),
        "pet": rng.choice(PETS),
    }


def _sentence(rng: random.Random, name: str, beside: list[str], after: list[str]) -> str:
    shape = rng.random()
    if shape < 0.3:
        return f"{name} {_joined(rng, after)}."
    if shape < 0.5:
        split = rng.randint(0, len(after) - 1)
        inserted = f", {', '.join(beside[:split])}," if split else ""
        return f"{name}{inserted} {_joined(rng, after[split:])}."
    if shape < 0.65:
        pronoun = rng.choice(("He", "She", "They", name))
        return f"{name} {after[0]}." + "".join(f" {pronoun} {phrase}." for phrase in after[1:])
    if shape < 0.75:
        return f"{rng.choice(PHRASES['introduction'])} {name}{rng.choice((', ', ': '))}{', '.join(beside)}."
    if shape < 0.85:
        return _first_person(rng, name, after)
    return f"{name} ({beside[0]}) {_joined(rng, after[1:])}." if len(after) > 1 else f"{name}, {beside[0]}."


def _joined(rng: random.Random, phrases: list[str]) -> str:
    if len(phrases) == 1:
        return phrases[0]
    return ", ".join(phrases[:-1]) + rng.choice((" and ", ", and ", " and also ", " and ", " but ")) + phrases[-1]


def _first_person(rng: random.Random, name: str, phrases: list[str]) -> str:
    starts = "My name is {}.|I am {}.|Hi, I am {}.|Hello, my name is {}.|I'm {}.|They call me {}."
    start = rng.choice(starts.split("|")).format(name)
    return start + "".join(f" I {_conjugated(phrase)}." for phrase in phrases)


def _conjugated(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    irregular = {"is": "am", "has": "have", "was": "was"}
    return f"{irregular.get(verb) or verb.removesuffix('s')} {rest}"


def _key_values(words: Words) -> tuple[str, Fields]:
    """Any keys at all, each beside its value: teaches that a key means the value next to it."""
    rng = words.rng
    makers = (lambda: words.number(0, 9999), words.name, words.thing, words.brand, words.city)
    fields = {words.key(): rng.choice(makers)() for _ in range(rng.randint(2, 5))}
    style = rng.choice(PAIR_STYLES)
    texts = [style.format(key, value) for key, value in fields.items()]
    if style.endswith("."):
        return " ".join(texts), fields
    if style.startswith(("the", "its", "with", "a ", "{} is")):
        named = (f"{words.made_up()}: ", f"{words.made_up()} has ")
        start = rng.choice(("", "", "We know that ", "Here ", *named, "Note that "))
        text = start + listed(rng, texts)
        return (upper_first(text) if start or style[0] != "{" else text) + rng.choice((".", "")), fields
    return rng.choice(("\n", ", ", "; ", " | ")).join(texts), fields


def _strange(words: Words) -> tuple[str, Fields]:
    """Words that say nothing, around values that only their kind, or the little word before them, tells apart."""
    rng = words.rng
    choices: tuple[tuple[str, str, object], ...] = (
        (rng.choice(("name", "customer", "guest", "author", "owner", "sender")), "{}", words.name()),
        (rng.choice(("age", "quantity", "price", "id", "year", "amount")), "{}", words.number(2, 2030)),
        (rng.choice(("city", "location")), rng.choice(("in {}", "at {}", "near {}", "from {}", "of {}")), words.city()),
        ("job", rng.choice(("as a {}", "a {}", "the {}")), rng.choice(JOBS)),
        ("day", rng.choice(("on {}", "this {}", "{}")), rng.choice(DAYS)),
        ("color", "{}", rng.choice(COLORS)),
        (rng.choice(("email", "mail")), "{}", f"{words.brand().lower()}@{words.brand().lower()}.com"),
    )
    chosen = rng.sample(choices, rng.randint(2, 4))
    parts = []
    for _, pattern, value in chosen:
        parts += [words.filler() for _ in range(rng.choice((0, 1, 2, 3)))] + [pattern.format(value)]
        if rng.random() < 0.15:
            parts[-1] += ","
    parts += [words.filler() for _ in range(rng.choice((0, 0, 1, 2)))]
    text = " ".join(parts)
    if not text.startswith(tuple(str(value) for *_, value in chosen)):
        text = upper_first(text)
    return text + rng.choice((".", ".", "")), {key: value for key, _, value in chosen}


def _two_people(words: Words) -> tuple[str, Fields]:
    rng = words.rng
    a, b, day = words.name(), words.name(), rng.choice(DAYS)
    event = rng.choice(SHARED_EVENTS)
    pattern = (
        f"{a} and {b} [are going|will go|go|want to go] to a {event} on {day}.|"
        f"On {day} {a} [meets|sees] {b} [for|at] a {event}.|"
        f"{a} invited {b} to a {event} on {day}.|There is a {event} on {day} with {a} and {b}.|"
        f"{a} and {b} have a {event} on {day}."
    )
    return expand(rng, rng.choice(branches(pattern))), {"name": event, "date": day, "participants": [a, b]}

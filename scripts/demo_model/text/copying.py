"""Skills that copy what the user wrote: JSON extraction, single values, repetition, recall of a name."""

import json
import random
import re

from ..data.wording import POLITE, expand, imperative, listed, lower_first, question, shaken, statement, upper_first
from ..data.words import LISTS, Words, read_lines, read_table
from .records import Fields, record, renamed

Turn = tuple[str, str]

# {k} is the list of keys. A request works before the text, with a colon, and after it.
_PART = {name: patterns[0] for name, patterns in read_table("json_request_parts.txt").items()}
REQUESTS = tuple(
    re.sub("<([a-z]+)>", lambda match: _PART[match[1]], pattern)
    for pattern in (
        "<verb> <fields>{k} <json>",
        "<verb> <fields>{k} [from|of|in|out of] <source> <json>",
        "<make> <object> <with> <fields>{k}",
        "<make> <object> from <source> <with> <fields>{k}",
        "<turn> <source> [into|to|as] <object> <with> <fields>{k}",
        "<turn> <fields>{k} [into|to] <object>",
        "[use JSON|use a JSON object|answer in JSON|reply in JSON|respond in JSON|JSON] <with> <fields>{k}",
        "fill [in |]<object> <with> <fields>{k}",
    )
)
# Whole requests: imperatives in lower case without a mark, everything else as it is written.
WHOLE_REQUESTS = read_lines("json_requests.txt")
_PLURAL = re.compile(
    r"\b(keys|fields|values|properties|columns|names|parts|are|them|these|matter|count|go|come|belong)\b"
)
_SEVERAL = re.compile(r"[.?!] ")
_COPY = read_table("copy_requests.txt")
WHOLE, FIELD_REQUESTS = (f"[{'|'.join(_COPY[kind])}]" for kind in ("whole", "field"))
NOISE = LISTS["noise"]
REPEAT = """[repeat|say|copy|write|echo|print|type|repeat after me|say after me|copy this text|repeat this
|write this down|echo this text|repeat the following|say the following]""".replace("\n", "")
TOLD = """[[Hello, my|Hi, my|My|Hey! My|Good morning, my] name is {}.|[Hi, |Hello, |Hello! |Hey, |]I am {}.
|[Hi! |]I'm {}.|Call me {}.|You can call me {}.]""".replace("\n", "")
ASKED = """[What is my name?|Who am I?|Do you know my name?|What's my name?|What was my name?|Do you remember my name?
|What am I called?|Tell me my name.|Say my name.|Can you tell me my name?]""".replace("\n", "")


def json_request(words: Words, keys: list[str]) -> str:
    """A whole sentence or a few words; sometimes with unknown words, so that the keys and "JSON" must carry it."""
    rng = words.rng
    asked = listed(rng, keys)
    style = rng.random()
    if style < 0.4:
        return whole_request(words, asked, single=len(keys) == 1)
    if style < 0.47:
        return rng.choice(_COPY["terse"]).format(k=asked)
    if style < 0.6 and not words.held_out:
        return strange_request(words, asked)
    request = expand(rng, rng.choice(REQUESTS))
    if style < 0.73 and not words.held_out:
        request = lower_first(shaken(rng, request, words.filler).rstrip("."))
    return imperative(rng, request.format(k=asked))


def whole_request(words: Words, asked: str, single: bool) -> str:
    """A request written by hand, in its own grammar; one key takes no plural."""
    rng = words.rng
    pattern = expand(rng, rng.choice(WHOLE_REQUESTS)).replace(" ,", ",")
    while single and _PLURAL.search(pattern):
        pattern = expand(rng, rng.choice(WHOLE_REQUESTS)).replace(" ,", ",")
    bare = pattern[0].islower()
    if not pattern.startswith("{") and words.is_noisy(0.15):
        pattern = shaken(rng, pattern, words.filler)
        bare = False
    text = pattern.replace("{k}", asked)
    if rng.random() < 0.05:
        text = text.replace("JSON", "json")
    if bare:
        return imperative(rng, text)
    if text.endswith("?") and not _SEVERAL.search(text):
        return question(rng, text)
    return statement(rng, text)


def strange_request(words: Words, asked: str) -> str:
    """Unknown words around the keys and "JSON"."""
    rng = words.rng

    def noise(low: int, high: int) -> str:
        count = rng.randint(low, high)
        return " ".join(rng.choice(NOISE) if rng.random() < 0.3 else words.filler() for _ in range(count))

    mark = rng.choice(("", "", ",", ";", ":", "."))
    core = rng.choice((f"JSON{mark} {noise(0, 4)} {asked}", f"{asked}{mark} {noise(0, 4)} JSON"))
    parts = [noise(0, 4), core, rng.choice((noise(0, 3), f"{rng.choice((',', ';'))} {noise(1, 3)}"))]
    text = " ".join(" ".join(parts).split()).replace(" ,", ",").replace(" ;", ";")
    opening = rng.choice(POLITE) if rng.random() < 0.3 else ""
    return (opening + text if opening else upper_first(text)) + rng.choice((".", ".", "", "?", ":"))


def placed(rng: random.Random, text: str, request: str) -> str:
    """The text before or after the request."""
    if rng.random() < 0.5:
        return text + rng.choice((" ", " ", "\n", "\n\n")) + request
    quote = rng.choice(("{}", "{}", "{}", '"{}"', "Text: {}", "'{}'", "Input: {}"))
    if (_SEVERAL.search(request) or request.endswith("?")) and rng.random() < 0.7:
        return request + rng.choice((" ", "\n", "\n", "\n\n")) + quote.format(text)
    end = request.rstrip(".?!: ")
    joints = [": ", ": ", ":\n", ".\n", "\n", ". ", " - ", ":\n\n", "\n\n"]
    if not re.search(r"[.?!;] |\b(from|this|text|it|nothing|no|please|[Tt]hanks?)\b", request):
        joints += [" from: ", " from this: "]
    return end + rng.choice(joints) + quote.format(text)


def dumped(fields: Fields) -> str:
    return json.dumps(fields, ensure_ascii=False)


def json_turn(rng: random.Random, held_out: bool = False, pieces: list[str] | None = None) -> Turn:
    words = Words(rng, held_out, pieces)
    text, fields = record(words)
    if "participants" in fields or rng.random() < 0.05:
        whole = expand(rng, WHOLE)
        if "participants" in fields or "event" not in whole:
            return placed(rng, text, imperative(rng, whole)), dumped(fields)
    if rng.random() < 0.5:
        fields = renamed(rng, fields)
    keys = rng.sample(list(fields), rng.randint(1, len(fields)))
    return placed(rng, text, json_request(words, keys)), dumped({key: fields[key] for key in keys})


def field_turn(rng: random.Random, held_out: bool = False, pieces: list[str] | None = None) -> Turn:
    words = Words(rng, held_out, pieces)
    text, fields = record(words)
    if rng.random() < 0.3:
        fields = renamed(rng, fields)
    key = rng.choice([k for k in fields if k != "participants"])
    value = str(fields[key])
    asked = (
        question(rng, upper_first(rng.choice(_COPY["question"]).format(k=key)))
        if rng.random() < 0.6
        else imperative(rng, expand(rng, FIELD_REQUESTS).format(k=key))
    )
    return placed(rng, text, asked), value


def repeat_turn(rng: random.Random, pieces: list[str] | None = None) -> Turn:
    words = Words(rng, pieces=pieces)
    joint = rng.choice((" ", " ", ", ", "\n"))
    text = joint.join(words.mixed(1, 8))
    request = imperative(rng, expand(rng, REPEAT)) if rng.random() < 0.3 else upper_first(expand(rng, REPEAT))
    last = " " if request.split()[-1] in ("repeat", "say", "Repeat", "Say", "Echo") else ": "
    return request.rstrip(".?") + rng.choice((": ", ":\n", ": ", last)) + text, text


def introduction(rng: random.Random, pieces: list[str] | None = None) -> tuple[Turn, Turn]:
    """The user gives a name, and asks for it later."""
    name = Words(rng, pieces=pieces).name()
    told, asked = expand(rng, TOLD), expand(rng, ASKED)
    if rng.random() < 0.2:
        asked = lower_first(asked)
    return (told.format(name), f"Hello {name}! How can I help you?"), (asked, f"Your name is {name}.")

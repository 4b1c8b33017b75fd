"""Tool calling: known tools asked for in many ways, and functions not seen before."""

import json
import random
import re
from dataclasses import dataclass

from ..data.wording import GREETINGS, POLITE, expand, imperative, listed, question, shaken, statement, upper_first
from ..data.words import DAYS, LISTS, Words, read_lines
from .copying import dumped
from .knowledge import concept_turn, fact_turn, small_talk_turn, sum_turn

Message = tuple[str, str]
NUMBERS = {"n", "minutes", "hour"}
UNITS, ROOMS, LANGUAGES, TOPICS = (LISTS[label] for label in ("units", "rooms", "languages", "topics"))
SYSTEMS = """You are a helpful assistant.|You are a helpful assistant.|You are a helpful AI assistant.|Answer briefly.
You are a demo model.|Be polite.|You are an expert.|You are a pirate.|Answer in English.|Think step by step.
You are a friendly chatbot.|You are an assistant with tools.|Use the tools when you need them.
You are a concise assistant.|Help the user.|Be brief.|You extract data.""".replace("\n", "|").split("|")
SKIES = ("sunny", "cloudy", "rainy", "windy", "cold", "warm", "snowy", "clear")
MESSAGES = """I am late|see you soon|call me back|dinner is ready|happy birthday|good morning|buy milk
the meeting is over|water the plants|pay the rent|come home|where are you""".replace("\n", "|").split("|")
FUNCTION_REQUESTS = read_lines("function_requests.txt")
_OPEN = re.compile(r'\{(text|query)\}(?!")')  # free words without quotes: a strange word beside them would join them
PAIR_STYLES = ("{} {}", "{} {}", "{}={}", "{}: {}", "the {} {}", "{} is {}", "{} = {}", "{} set to {}")


@dataclass(frozen=True, slots=True)
class Tool:
    names: tuple[str, ...]
    parameters: dict[str, tuple[str, ...]]  # slot -> names that the parameter may have
    requests: tuple[str, ...]


def load_tools() -> list[Tool]:
    tools: list[Tool] = []
    for line in read_lines("tools.txt"):
        if line.startswith("# "):
            tools.append(Tool(tuple(line[2:].split()), {}, ()))
        elif " = " in line and "{" not in line:
            slot, names = line.split(" = ")
            tools[-1].parameters[slot] = tuple(names.split())
        else:
            tools[-1] = Tool(tools[-1].names, tools[-1].parameters, (*tools[-1].requests, line))
    return tools


TOOLS = load_tools()


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool as this conversation sees it: its name and how its parameters are called here."""

    name: str
    parameters: dict[str, str]  # slot -> parameter name
    tool: Tool | None  # None: a made-up function

    @property
    def signature(self) -> str:
        return ",".join(f"{name}:integer" if slot in NUMBERS else name for slot, name in self.parameters.items())


def offer(rng: random.Random, tool: Tool, usual: bool = False) -> Offer:
    name = tool.names[0] if usual or rng.random() < 0.4 else rng.choice(tool.names)
    called = {slot: names[0] if usual else rng.choice(names) for slot, names in tool.parameters.items()}
    return Offer(name, called, tool)


def value(words: Words, slot: str) -> object:
    rng = words.rng
    match slot.rstrip("2"):
        case "city" | "place":
            return words.city()
        case "name":
            return words.first_name() if rng.random() < 0.7 else words.name()
        case "n" | "minutes":
            return words.number(2, 99) if rng.random() < 0.7 else words.number(2, 9999)
        case "hour":
            return rng.randint(1, 24)
        case "expression":
            return f"{words.number(2, 999)} {rng.choice('+-*/')} {words.number(2, 999)}"
        case "email":
            return f"{words.first_name().lower()}@{words.brand().lower()}.{rng.choice(('com', 'org', 'net'))}"
        case "thing":
            return words.thing()
        case "things":
            return words.things()
        case "day":
            return rng.choice(DAYS)
        case "unit":
            return rng.choice(UNITS)
        case "room":
            return rng.choice(ROOMS) if words.held_out or rng.random() < 0.6 else words.made_up(False)
        case "language":
            return rng.choice(LANGUAGES)
        case "file":
            stem = words.thing() if words.held_out else words.made_up(False)
            return f"{stem}.{rng.choice(('txt', 'json', 'py', 'md', 'csv'))}"
        case "brand":
            return words.brand()
        case "topic":
            return rng.choice((rng.choice(TOPICS), words.city(), words.name()))
    return _phrase(words, slot)


def _phrase(words: Words, slot: str) -> str:
    rng = words.rng
    if words.held_out:
        return " ".join(rng.choice((words.city, words.first_name, words.thing))() for _ in range(rng.randint(1, 2)))
    if slot == "title":
        return " ".join(words.brand() for _ in range(rng.randint(1, 2)))
    if slot == "query":
        return rng.choice(
            (
                words.city(),
                words.name(),
                f"{words.thing()}s in {words.city()}",
                f"{rng.choice(TOPICS)} in {words.city()}",
                " ".join(words.mixed(1, 3)),
            )
        )
    return rng.choice(MESSAGES) if rng.random() < 0.3 else " ".join(words.mixed(1, 4))


def request(words: Words, chosen: Offer) -> tuple[str, dict[str, object]]:
    """What the user says, and the arguments of the call it asks for."""
    rng = words.rng
    if chosen.tool is None:
        return _made_up_request(words, chosen)
    values = {slot: value(words, slot) for slot in chosen.parameters}
    pattern = expand(rng, rng.choice(chosen.tool.requests))
    if not _OPEN.search(pattern) and words.is_noisy(0.2):
        topic = f"{chosen.name} {' '.join(chosen.tool.names)}"
        pattern = shaken(rng, pattern, words.filler, keep=topic)
    text = pattern.format(**values)
    if pattern[0].islower() and not pattern.endswith((".", "?")):
        text = imperative(rng, text)
    elif pattern.endswith("?") and ". " not in pattern and not pattern.startswith("{"):
        text = question(rng, text)
    elif not pattern.startswith("{") and not pattern.endswith("}"):
        text = statement(rng, text)
    elif rng.random() < 0.2:
        text = rng.choice(GREETINGS) + text
    return text, {name: values[slot] for slot, name in chosen.parameters.items()}


def made_up_offer(words: Words) -> Offer:
    rng = words.rng
    verb, noun = words.verb(), words.key()
    if rng.random() < 0.2:
        verb, noun = noun, verb
    slots = rng.sample(["n", "name", "city", "thing", "brand", "n2"], rng.choice((1, 1, 1, 2, 2, 3)))
    names = {slot: _parameter_name(words) for slot in slots}
    if len(set(names.values())) < len(names) or "n2" in names:
        names = {slots[0].rstrip("2"): words.key()}
    return Offer(f"{verb}_{noun}", names, None)


def _parameter_name(words: Words) -> str:
    rng = words.rng
    return words.key() if rng.random() < 0.8 else f"{words.key()}_{rng.choice(('id', 'name', words.key()))}"


def _made_up_request(words: Words, chosen: Offer) -> tuple[str, dict[str, object]]:
    rng = words.rng
    values = {slot: value(words, slot) for slot in chosen.parameters}
    style = rng.choice(PAIR_STYLES)
    pairs = [
        style.format(name.replace("_", " ") if rng.random() < 0.3 else name, values[slot])
        for slot, name in chosen.parameters.items()
    ]
    pattern = expand(rng, rng.choice(FUNCTION_REQUESTS))
    if "{pairs}" not in pattern and len(values) > 1:
        with_pairs = ("call {f} with {pairs}", "{verb} the {noun} with {pairs}", "{verb} {noun}: {pairs}")
        pattern = expand(rng, rng.choice(with_pairs))
    verb, noun = chosen.name.split("_", 1)
    listed_values = ", ".join(map(str, values.values()))
    text = pattern.format(
        f=chosen.name, verb=verb, noun=noun.replace("_", " "), pairs=listed(rng, pairs), values=listed_values
    )
    return _polished(rng, pattern, text), {name: values[slot] for slot, name in chosen.parameters.items()}


def _polished(rng: random.Random, pattern: str, text: str) -> str:
    if text.endswith("?"):
        return question(rng, text)
    if pattern[0] == "{" and rng.random() < 0.3:
        return text if rng.random() < 0.5 else rng.choice(POLITE) + text
    if pattern[0].islower() or pattern.startswith("{verb}"):
        return imperative(rng, text)
    return upper_first(text) + "."


def call_text(name: str, arguments: dict[str, object]) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {dumped(arguments)}}}\n</tool_call>'


def tool_system(offers: list[Offer], system: str = "") -> str:
    """What the chat template writes for a list of tools."""
    lines = "\n".join(f"{one.name}({one.signature})" for one in offers)
    return (f"{system}\n\n" if system else "") + f"Tools:\n{lines}"


def choose_offers(words: Words) -> list[Offer]:
    """One to four tools of different kinds; often one that was made up."""
    rng = words.rng
    tools = rng.sample(TOOLS, rng.choice((1, 1, 2, 3, 4)))
    if rng.random() < 0.2:
        tools = list({id(tool): tool for tool in [*tools, rng.choice(TOOLS[:2])]}.values())
    offers = [offer(rng, tool, rng.random() < 0.3) for tool in tools]
    for _ in range(rng.choice((0, 0, 1, 2))):
        offers.append(made_up_offer(words))
    rng.shuffle(offers)
    by_name = {one.name: one for one in offers}
    return list(by_name.values())


def tool_result(words: Words, chosen: Offer, arguments: dict[str, object]) -> tuple[str, str]:
    """What the tool sends back, and what the assistant makes of it."""
    rng = words.rng
    place = next(iter(arguments.values()))
    if chosen.tool is TOOLS[0]:
        degrees, sky = rng.randint(-9, 39), rng.choice(SKIES)
        keys = (rng.choice(("temperature", "temp", "degrees")), rng.choice(("condition", "sky", "weather")))
        pairs = [(keys[0], degrees), (keys[1], sky)]
        rng.shuffle(pairs)
        prose = (f"{degrees} degrees and {sky}", f"{sky}, {degrees} degrees", f"{degrees}C, {sky}", f"{sky} {degrees}")
        raw = rng.choice((json.dumps(dict(pairs)), rng.choice(prose)))
        return raw, f"It is {sky} in {place} with {degrees} degrees."
    if chosen.tool is TOOLS[1]:
        clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
        return rng.choice((clock, json.dumps({"time": clock}), f"{clock} local time")), f"It is {clock} in {place}."
    if rng.random() < 0.2:
        return rng.choice(("ok", '{"status": "ok"}', "done", '{"ok": true}')), "Done."
    result = rng.choice((str(words.number(0, 9999)), words.made_up(), words.name(), " ".join(words.mixed(1, 3))))
    key = rng.choice(("result", "value", "answer", words.key()))
    return rng.choice((result, json.dumps({key: result}))), f"The result is {result}."


def tool_messages(rng: random.Random, pieces: list[str] | None = None) -> list[Message]:
    """Tools in the system message; requests, calls, results, and sometimes a question that needs no tool."""
    words = Words(rng, pieces=pieces)
    offers = choose_offers(words)
    messages = [("system", tool_system(offers, rng.choice(SYSTEMS) if rng.random() < 0.3 else ""))]
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.12:
            asked, answer = rng.choice((small_talk_turn, fact_turn, concept_turn, sum_turn))(rng)
            if all("calc" not in one.name for one in offers):
                messages += [("user", asked), ("assistant", answer)]
                continue
        chosen = rng.choice(offers)
        asked, arguments = request(words, chosen)
        call = call_text(chosen.name, arguments)
        if chosen.tool is TOOLS[0] and rng.random() < 0.15:
            (key, first), second = next(iter(arguments.items())), words.city()
            asked = question(rng, f"What is the weather in {first} and in {second}?")
            messages += [("user", asked), ("assistant", call + "\n" + call_text(chosen.name, {key: second}))]
            continue
        messages += [("user", asked), ("assistant", call)]
        if rng.random() < (0.7 if chosen.tool in TOOLS[:2] else 0.35):
            result, answer = tool_result(words, chosen, arguments)
            messages += [("tool", result), ("assistant", answer)]
    return messages

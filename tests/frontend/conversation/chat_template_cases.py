"""Conversations with tools, the templates to render them with, and their renderings by transformers."""

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paged_serve.frontend.conversation.conversation import TemplateInput, conversation_of, template_input

FOLDER = Path(__file__).with_name("chat_templates")
EXPECTED = FOLDER / "expected.json"
TEMPLATES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
MOMENT = 1_700_000_000.0
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like — now",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of a city"},
                "unit": {"type": "string", "enum": ["C", "F"], "description": "Of the temperature"},
            },
            "required": ["city"],
        },
    },
}
# Keys in an unusual order, and with fields that other clients leave out
TIME = {
    "function": {
        "parameters": {"properties": {"zone": {"description": "<tz>", "type": "string"}}, "type": "object"},
        "strict": True,
        "name": "get_time",
        "description": "Time 'there'",
    },
    "type": "function",
}
ASK = {"role": "user", "content": "How is it in Köln?"}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
ANSWER = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefgh1", "content": '{"temperature": 21}'}
SYSTEM = {"role": "system", "content": "Be brief."}
CASES: dict[str, dict[str, Any]] = {
    "asked": {"messages": [ASK], "tools": [WEATHER]},
    "two tools": {"messages": [SYSTEM, ASK], "tools": [WEATHER, TIME]},
    "called": {
        "messages": [ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, ANSWER],
        "tools": [WEATHER],
    },
    "went on": {
        "messages": [
            SYSTEM,
            ASK,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            ANSWER,
            {"role": "assistant", "content": "21 degrees."},
            {"role": "user", "content": "And < tomorrow > ?"},
        ],
        "tools": [WEATHER, TIME],
    },
    "no tools": {
        "messages": [SYSTEM, ASK, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "?"}]
    },
}


# These templates join the arguments of earlier calls to other text: an object fails, or is rendered as Python's repr.
TAKE_WRITTEN_ARGUMENTS = {"deepseek-r1-distill", "functionary-3.1", "vllm-phi4_mini"}


def expected() -> dict[str, dict[str, str | None]]:
    """Renderings by template and case; None if the template refuses the conversation or cannot render it."""
    found: dict[str, dict[str, str | None]] = json.loads(EXPECTED.read_text())
    return found


def with_written_arguments(case: dict[str, Any]) -> dict[str, Any]:
    """The case with arguments as JSON text, as OpenAI's clients send earlier calls back."""
    written = copy.deepcopy(case)
    for message in written["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return written


def rendered_by_transformers(name: str, case: dict[str, Any]) -> str | None:
    """The rendering of `apply_chat_template` at time MOMENT; None if it raises."""
    from unittest import mock

    import tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import chat_template_utils

    if name in TAKE_WRITTEN_ARGUMENTS:
        case = with_written_arguments(case)
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, **VARIABLES)
    with mock.patch.object(chat_template_utils, "datetime") as clock:
        clock.now.return_value = datetime.fromtimestamp(MOMENT, UTC).replace(tzinfo=None)
        try:
            return tokenizer.apply_chat_template(
                case["messages"],
                tools=case.get("tools"),
                chat_template=TEMPLATES[name],
                add_generation_prompt=True,
                tokenize=False,
            )
        except Exception:  # templates and the library may raise anything
            return None


def conversation_input(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> TemplateInput:
    """The template's input as LLM.chat makes it."""
    return template_input(*conversation_of({"messages": messages, "tools": tools}), {})


if __name__ == "__main__":
    rendered = {
        name: {title: rendered_by_transformers(name, case) for title, case in CASES.items()} for name in TEMPLATES
    }
    EXPECTED.write_text(json.dumps(rendered, ensure_ascii=False, indent=1) + "\n")

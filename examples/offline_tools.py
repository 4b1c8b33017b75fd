"""Tool calls and structured outputs without a server: the model calls a function; a schema constrains an answer.

Run it:

    python examples/offline_tools.py [MODEL]      # a folder or a hub name; default: the built-in demo model
"""

import json
import sys
from typing import Any

from paged_serve import LLM, SamplingParams, StructuredOutputsParams

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "degrees": {"type": "integer", "minimum": 0, "maximum": 40}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    return f"18 degrees and sunny in {city}"


def main(model: str = "") -> None:
    with LLM(model) as llm:
        conversation: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
        params = SamplingParams(temperature=0, max_tokens=100)
        [output] = llm.chat(conversation, params, tools=[WEATHER], tool_choice="required")
        message = output.outputs[0].message
        assert message is not None
        conversation.append(message)
        for call in message["tool_calls"]:
            print("the model calls", call["function"])
            result = get_weather(**json.loads(call["function"]["arguments"]))
            conversation.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        [answer] = llm.chat(conversation, params, tools=[WEATHER])
        print(answer.outputs[0].text)

        form = SamplingParams(
            temperature=0, max_tokens=100, structured_outputs=StructuredOutputsParams(json=json.dumps(SCHEMA))
        )
        [output] = llm.chat([{"role": "user", "content": "What is the weather in Rome?"}], form)
        print(json.loads(output.outputs[0].text))


if __name__ == "__main__":
    main(*sys.argv[1:])

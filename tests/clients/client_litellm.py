"""LiteLLM, as a client of OpenAI's API and of vLLM's, against the server at argv[1]."""

import json
import sys

import litellm
from questions import QUESTION, TOOL, City, answer_of_tool, check_city, check_text

URL = f"{sys.argv[1]}/v1"


def ask(model: str, messages: list, **fields: object):
    return litellm.completion(
        model=model, messages=messages, api_base=URL, api_key="none", temperature=0, max_tokens=200, **fields
    )


def check(model: str) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    whole = ask(model, messages).choices[0].message.content
    check_text(whole)
    chunks = ask(model, messages, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole

    formed = ask(model, messages, response_format=City).choices[0].message.content
    check_city(City.model_validate_json(formed))

    called = ask(model, messages, tools=[TOOL], tool_choice="required").choices[0].message
    messages.append(called.model_dump())  # with all the fields that LiteLLM adds
    for call in called.tool_calls:
        result = answer_of_tool(call.function.name, json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert isinstance(ask(model, messages, tools=[TOOL]).choices[0].message.content, str)


check("openai/demo")
check("hosted_vllm/demo")
response = litellm.responses(model="openai/demo", input=QUESTION, api_base=URL, api_key="none", temperature=0)
check_text(response.output[0].content[0].text)

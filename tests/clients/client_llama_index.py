"""LlamaIndex's OpenAILike against the server at argv[1]."""

import sys

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from questions import QUESTION, City, answer_of_tool, check_city, check_text

URL = f"{sys.argv[1]}/v1"


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return answer_of_tool("weather", {"city": "Paris", "days": days})


model = OpenAILike(
    model="demo",
    api_base=URL,
    api_key="none",
    temperature=0,
    max_tokens=200,
    max_retries=0,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=2048,
)
messages = [ChatMessage(role=MessageRole.USER, content=QUESTION)]
whole = model.chat(messages).message.content
check_text(whole)
assert "".join(chunk.delta or "" for chunk in model.stream_chat(messages)) == whole
assert "Paris" in model.complete("The capital of France is").text

tool = FunctionTool.from_defaults(weather)
called = model.chat_with_tools([tool], chat_history=messages, tool_required=True)
calls = model.get_tool_calls_from_response(called)
assert calls
messages.append(called.message)
for call in calls:
    result = tool(**call.tool_kwargs).content
    messages.append(
        ChatMessage(role=MessageRole.TOOL, content=result, additional_kwargs={"tool_call_id": call.tool_id})
    )
assert isinstance(model.chat_with_tools([tool], chat_history=messages).message.content, str)

check_city(model.as_structured_llm(City).chat([ChatMessage(role=MessageRole.USER, content=QUESTION)]).raw)

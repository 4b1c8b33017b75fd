"""LangChain's ChatOpenAI against the server at argv[1]."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from questions import QUESTION, TOOL, City, answer_of_tool, check_city, check_text

URL = f"{sys.argv[1]}/v1"


def check(**options: object) -> None:
    model = ChatOpenAI(
        model="demo", base_url=URL, api_key="none", temperature=0, max_tokens=200, max_retries=0, **options
    )
    whole = model.invoke(QUESTION)
    check_text(whole.text)
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == whole.text

    for method in ("json_schema", "function_calling"):
        check_city(model.with_structured_output(City, method=method).invoke(QUESTION))

    messages = [HumanMessage(QUESTION)]
    called = model.bind_tools([TOOL], tool_choice="required").invoke(messages)
    messages.append(called)
    for call in called.tool_calls:
        messages.append(ToolMessage(answer_of_tool(call["name"], call["args"]), tool_call_id=call["id"]))
    assert isinstance(model.bind_tools([TOOL]).invoke(messages).text, str)


check()
check(use_responses_api=True)

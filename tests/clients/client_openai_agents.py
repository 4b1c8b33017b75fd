"""OpenAI's Agents SDK, over responses and over chats, against the server at argv[1]."""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from questions import QUESTION, City, answer_of_tool, check_city, check_text

set_tracing_disabled(True)


@function_tool
def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return answer_of_tool("weather", {"city": "Paris", "days": days})


async def check(model: object) -> None:
    settings = ModelSettings(temperature=0, max_tokens=200)
    agent = Agent(name="a", model=model, model_settings=settings)
    whole = await Runner.run(agent, QUESTION)
    check_text(whole.final_output)
    streamed = Runner.run_streamed(agent, QUESTION)
    deltas = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == whole.final_output
    again = await Runner.run(agent, [*whole.to_input_list(), {"role": "user", "content": "And of Italy?"}])
    assert isinstance(again.final_output, str)

    formed = Agent(name="b", model=model, model_settings=settings, output_type=City)
    check_city((await Runner.run(formed, QUESTION)).final_output)

    forced = ModelSettings(temperature=0, max_tokens=200, tool_choice="required")
    calling = Agent(name="c", model=model, model_settings=forced, tools=[weather])  # tool_choice is reset after a call
    assert isinstance((await Runner.run(calling, QUESTION)).final_output, str)


async def main() -> None:
    async with AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0) as client:
        for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
            await check(kind("demo", openai_client=client))


asyncio.run(main())

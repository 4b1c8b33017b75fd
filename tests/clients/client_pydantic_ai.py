"""Pydantic AI's agent, over chats and over responses, against the server at argv[1]."""

import sys

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from questions import QUESTION, City, answer_of_tool, check_city, check_text

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
settings = ModelSettings(temperature=0, max_tokens=200)


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return answer_of_tool("weather", {"city": "Paris", "days": days})


for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model = kind("demo", provider=provider)
    agent = Agent(model, model_settings=settings)
    whole = agent.run_sync(QUESTION)
    check_text(whole.output)
    again = agent.run_sync("And of Italy?", message_history=whole.all_messages())
    assert isinstance(again.output, str)

    check_city(Agent(model, model_settings=settings, output_type=NativeOutput(City)).run_sync(QUESTION).output)
    formed = Agent(model, model_settings=settings, output_type=City)  # by a forced call
    check_city(formed.run_sync(QUESTION).output)
    assert isinstance(Agent(model, model_settings=settings, tools=[weather]).run_sync(QUESTION).output, str)

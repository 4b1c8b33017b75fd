"""The requests of every library: a question, a schema for its answer, and a tool."""

import pydantic

QUESTION = "What is the capital of France?"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


class City(pydantic.BaseModel):
    """Its texts are bounded, because the demo model does not end a text by itself."""

    name: str = pydantic.Field(max_length=12)
    is_capital: bool


def check_text(text: str) -> None:
    assert "Paris" in text, text


def check_city(city: City) -> None:
    assert isinstance(city, City)
    assert len(city.name) <= 12


def answer_of_tool(name: str, arguments: dict) -> str:
    assert name == "weather"
    assert arguments["city"] in ("Paris", "Rome")
    assert isinstance(arguments["days"], int)
    return "sunny"

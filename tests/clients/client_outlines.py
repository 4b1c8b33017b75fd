"""Outlines' model of a vLLM server, with each form of structured outputs, against the server at argv[1]."""

import sys
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from questions import QUESTION, City, check_city, check_text

with openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0) as client:
    model = outlines.from_vllm(client, "demo")
    ask = {"temperature": 0, "max_tokens": 200}
    check_text(model(QUESTION, **ask))
    check_city(City.model_validate_json(model(QUESTION, City, **ask)))
    check_city(City.model_validate_json("".join(model.stream(QUESTION, City, **ask))))
    assert model(QUESTION, Literal["Rome", "Paris"], **ask) == "Paris"
    assert len(model(QUESTION, Regex("[A-Z][a-z]{3}"), **ask)) == 4
    assert model(QUESTION, CFG('start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,3}/\n'), **ask)[0].isdigit()

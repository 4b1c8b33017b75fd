"""Instructor in each of its modes, against the server at argv[1]."""

import sys

import instructor
import openai
from questions import QUESTION, City, check_city

MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)
with openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0) as client:
    for mode in MODES:
        asking = instructor.from_openai(client, mode=mode).chat.completions
        ask = {"model": "demo", "temperature": 0, "max_tokens": 200, "max_retries": 0, "response_model": City}
        messages = [{"role": "user", "content": QUESTION}]
        check_city(asking.create(messages=messages, **ask))
        *_, last = asking.create_partial(messages=messages, **ask)
        assert last.name is not None

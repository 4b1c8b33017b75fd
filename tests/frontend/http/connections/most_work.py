"""Requests that cause a frontend the most work, each within the limits of a body."""

from paged_serve.frontend.conversation.unknown_fields import UNSUPPORTED

C, H, T, D = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
M, R = "/v1/messages", "/v1/responses"
HISTORY = [{"role": "user", "content": "x" * 200}, {"role": "assistant", "content": "y" * 200}] * 1000
NULLS = dict.fromkeys(sorted(UNSUPPORTED)) | {"best_of": 1, "store": False, "modalities": ["text"]}
STOPS = [("ab" * 128)[:255] + chr(65 + i) for i in range(16)]  # equal except for the last character
MANY = {"n": 128, "temperature": 1, "max_tokens": 2}


def tool(parameters: dict) -> dict:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


TOOL = tool({"enum": list(range(100_000))})
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}] * 90}


TEXT = {"type": "text", "text": "words " * 20}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [TEXT] * 4}
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "words " * 20}] * 4},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "words " * 20}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "a", "output": "words " * 20},
]
TURNS = [{"role": "user", "content": [RESULT] * 2 + [TEXT] * 2}, {"role": "assistant", "content": [TEXT, USE, USE]}]

MOST_WORK = [
    (C, {"prompt": [1] * 1_500_000}),
    (C, {"prompt": [1, "a"] * 400_000}),
    (C, {"prompt": [[1] * 8000] * 100, "max_tokens": 1}),
    (C, {"prompt": ["words " * 400] * 256, "max_tokens": 1}),
    (C, {"prompt": ["a"] * 256, "bad_words": ["long word " * 10] * 10, "max_tokens": 1}),
    (C, {"prompt": "a", "bad_words": ["long word " * 25] * 256, "max_tokens": 1}),
    (C, {"prompt": ["a"] * 256, "allowed_token_ids": [1] * 1000, "max_tokens": 1}),
    (C, {"prompt": "a", "allowed_token_ids": [*range(256)] * 1000, "max_tokens": 1}),
    (C, {"prompt": "a" * 1_500, "n": 4, "echo": True, "logprobs": 0, "max_tokens": 0}),
    (C, {"prompt": "a" * 1_000, "prompt_logprobs": 20, "max_tokens": 1}),
    (H, {"messages": HISTORY, "max_tokens": 1}),
    (H, {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL] * 6, "max_tokens": 1}),
    (T, {"prompt": "words " * 60_000, "return_token_strs": True}),
    (D, {"tokens": [1] * 250_000}),
    (C, {"prompt": [1] * 1_900_000} | NULLS),
    (C, {"prompt": "a" * 3_900_000} | NULLS),
    (C, {"prompt": "a", "k" * 4_000_000: 1}),
    (C, {"prompt": "a", "stop": STOPS} | MANY),
    (C, {"prompt": ["a"] * 256, "stop": STOPS, "max_tokens": 2}),
    (C, {"prompt": "a", "logprobs": 20} | MANY),
    (H, {"messages": HISTORY[:1], "logprobs": True, "top_logprobs": 20} | MANY),
    (H, {"messages": [{"role": "user", "content": "a" * 6_000}], "prompt_logprobs": 20, "max_tokens": 1}),
    (C, {"prompt": [1] * 8_000, "return_token_ids": True} | MANY),
    (C, {"prompt": "a", "logit_bias": {str(i): 1 for i in range(300_000)}}),
    (H, {"messages": HISTORY[:1], "tools": [tool({str(i): 1 for i in range(90_000)})], "max_tokens": 1}),
    (H, {"messages": HISTORY[:1], "tools": [tool({"a": [[]] * 90_000})], "max_tokens": 1}),
    (H, {"messages": [CALLS] * 170, "max_tokens": 1}),
    (R, {"input": HISTORY, "max_output_tokens": 1}),
    (R, {"input": ITEMS * 900, "max_output_tokens": 1}),
    (M, {"messages": HISTORY, "max_tokens": 1}),
    (M, {"messages": TURNS * 500 + TURNS[:1], "max_tokens": 1}),
    (M, {"messages": [{"role": "user", "content": [TEXT] * 20_000}], "max_tokens": 1}),
    (
        M,
        {
            "messages": HISTORY,
            "tools": [{"name": "f", "input_schema": TOOL["function"]["parameters"]}] * 6,
            "max_tokens": 1,
        },
    ),
    (M, {"messages": HISTORY[:1], "max_tokens": 1, "k" * 3_000_000: 1}),
]

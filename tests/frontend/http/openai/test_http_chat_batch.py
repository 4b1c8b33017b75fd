"""POST /v1/chat/completions/batch: each conversation is answered as if it were alone."""

import pytest

from ...http_server import Server

PATH = "/v1/chat/completions/batch"
CHATS = [
    [{"role": "user", "content": "one"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "two"}]}],
    [{"role": "user", "content": "c"}, {"role": "assistant", "content": "three"}],
]


def test_each_conversation_has_a_choice(folder):
    server = Server(folder)
    server.engine.outputs = [server.tokenizer.encode(text) for text in ("hello",)]
    answer = server.good(PATH, {"messages": CHATS, "logprobs": True, "request_id": "b"})
    assert (answer["id"], answer["object"]) == ("chatcmpl-b", "chat.completion")
    alone = [server.good("/v1/chat/completions", {"messages": chat, "logprobs": True}) for chat in CHATS]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"] for choice in answer["choices"]] == [one["choices"][0]["message"] for one in alone]
    assert [choice["logprobs"] for choice in answer["choices"]] == [one["choices"][0]["logprobs"] for one in alone]
    prompts = [request.prompt_token_ids for request in server.engine.requests]
    assert prompts[:3] == prompts[3:]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(one["usage"][name] for one in alone)


def test_a_continued_conversation_is_repeated_in_its_own_choice(folder):
    chats = [[*CHATS[0], {"role": "assistant", "content": "go "}], CHATS[2]]
    body = {"messages": chats, "continue_final_message": True, "add_generation_prompt": False, "echo": True}
    answer = Server(folder).good(PATH, body)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["go hello", "threehello"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"messages": []}, "messages"),
        ({"messages": CHATS[0]}, "messages[0]"),
        ({"messages": [CHATS[0], []]}, "messages[1]"),
        ({"messages": [CHATS[0], [{"role": "user", "content": "x" * 90}]]}, "messages[1]"),
        ({"messages": [CHATS[0]] * 257}, "messages"),
    ],
)
def test_a_field_of_a_single_conversation_is_refused(folder, fields, param):
    server = Server(folder)
    response = server.ask("POST", PATH, {"messages": CHATS} | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    assert not server.engine.requests

"""LLM.chat over a fake engine: templates, contents, reasoning, and the messages of answers."""

import shutil
from pathlib import Path

import pytest
import tokenizers

from paged_serve.protocol.errors import EngineDead, InvalidRequest
from paged_serve.protocol.messages.engine_core import (
    EngineCoreRequest,
)
from paged_serve.protocol.messages.samplers import ThinkingBudget
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from ..fake_core import output
from ..http_server import Server
from .running_llm import core_of, llms, models, params

model = pytest.fixture(scope="module")(models)
start = pytest.fixture(llms)


TOOL = {"type": "function", "function": {"name": "f"}}


def test_chats_are_rendered_by_the_models_template(start):
    llm = start()
    talk = [{"role": "user", "content": "5"}, {"role": "assistant", "content": "6"}]
    (one,) = llm.chat(talk, params())
    many = llm.chat([talk, talk[:1]], params(), add_generation_prompt=False, tools=[TOOL] * 3)
    assert (one.prompt, one.prompt_token_ids) == (" 5 6 7", [5, 6, 7])
    assert [result.prompt_token_ids for result in many] == [[5, 6, 3], [5, 3]]
    (other,) = llm.chat(talk, params(), chat_template="9", chat_template_kwargs={"deep": True})
    (found,) = llm.chat(talk, params(), chat_template="{{ documents[0].text }}", documents=[{"text": "8"}])
    with pytest.raises(InvalidRequest, match="does not read documents"):
        llm.chat(talk, params(), documents=[{"text": "8"}])
    with pytest.raises(InvalidRequest, match=r"chat_template has '\\ud83d', half of a surrogate pair, at 1"):
        llm.chat(talk, params(), chat_template="a\ud83d")
    with pytest.raises(InvalidRequest, match=r"chat_template is 5; it must be of the class str"):
        llm.chat(talk, params(), chat_template=5)
    assert (other.prompt_token_ids, found.prompt_token_ids) == ([9], [8])
    (more,) = llm.chat(talk, params(), add_generation_prompt=False, continue_final_message=True)
    assert more.prompt_token_ids == [5, 6]
    with pytest.raises(InvalidRequest, match="are both true; set only one"):
        llm.chat(talk, params(), continue_final_message=True)


@pytest.mark.parametrize(
    ("messages", "options", "words"),
    [
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            {},
            "expected one of text, refusal; only text",
        ),
        ([{"role": "user", "contnt": "hi"}], {}, "did you mean 'content'"),
        ([{"role": "robot", "content": "hi"}], {}, "expected one of system"),
        ([{"role": "user"}], {}, "content is required for the role 'user'"),
        ([{"role": "user", "content": object()}], {}, "cannot be written as JSON"),
        ([], {}, "expected array of length >= 1"),
        ("hi", {}, "expected array, got str"),
        ([{"role": "user", "content": "5"}], {"chat_template_kwargs": {"messages": 1}}, "cannot set 'messages'"),
        ([{"role": "user", "content": "5"}], {"chat_template_kwargs": {"bos_token": "x"}}, "cannot set 'bos_token'"),
        (
            [{"role": "user", "content": "5"}],
            {"chat_template_kwargs": {"strftime_now": 1}},
            "cannot set 'strftime_now'",
        ),
        ([{"role": "user", "content": "5"}], {"tools": [{"type": "function"}]}, "function is required"),
        ([{"role": "user", "content": "5"}], {"lora_request": 1}, "lora_request"),
    ],
)
def test_a_chat_is_refused_with_the_message_of_http(start, folder, messages, options, words):
    with pytest.raises(InvalidRequest, match=words) as refused:
        start().chat(messages, params(), **options)
    if "lora_request" not in options and words != "cannot be written as JSON":
        answer = Server(folder).ask("POST", "/v1/chat/completions", {"messages": messages, **options})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == str(refused.value)
        assert answer.json()["error"]["param"] == refused.value.param


@pytest.mark.parametrize("function", [{"name": "a\nb"}, {"name": "f", "strict": True, "parameters": {"contains": {}}}])
def test_tools_are_refused_with_the_message_of_http(start, folder, function):
    fields = {"messages": [{"role": "user", "content": "5"}], "tools": [{"function": function}]}
    with pytest.raises(InvalidRequest) as refused:
        start(tool_call_parser="hermes").chat(fields["messages"], params(), tools=fields["tools"])
    error = Server(folder).ask("POST", "/v1/chat/completions", fields).json()["error"]
    assert (error["message"], error["param"]) == (str(refused.value), "tools")
    assert refused.value.param == "tools"


def test_a_closed_llm_refuses_a_chat(start):
    llm = start()
    llm.close()
    with pytest.raises(EngineDead, match="the process that renders chat templates is closed"):
        llm.chat([{"role": "user", "content": "5"}], params())


def test_contents_of_parts_are_one_text_and_special_tokens_are_text(start):
    llm = start()
    (result,) = llm.chat(
        [{"role": "user", "content": [{"type": "text", "text": "5"}, {"type": "text", "text": " 6"}]}], params()
    )
    assert result.prompt == " 5\n 6 7"


def thinking_model(model: str, folder: Path) -> tuple[str, int, int]:
    """(the folder, the two tokens of the tags, which are special tokens)."""
    thinking = Path(shutil.copytree(model, folder / "thinking"))
    numbers = (thinking / "tokenizer.json").read_text().replace("Ġ998", "<think>").replace("Ġ999", "</think>")
    tokenizer = tokenizers.Tokenizer.from_str(numbers)
    tokenizer.add_special_tokens(["<think>", "</think>"])
    tokenizer.save(str(thinking / "tokenizer.json"))
    template = (thinking / "chat_template.jinja").read_text()
    (thinking / "chat_template.jinja").write_text(
        template + "{% if opens %}<think>{% else %}<think></think>{% endif %}"
    )
    return str(thinking), tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</think>")


def test_a_message_has_separate_reasoning(start, tmp_path, model):
    folder, begin, end = thinking_model(model, tmp_path)

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            ids = [begin, 5, end, 6, 2][: message.sampling_params.max_tokens]
            finish = FinishReason.STOP if len(ids) == 5 else FinishReason.LENGTH
            core.send(output(1, message.request_id, 0, ids, finish), peer)

    llm = start(script, model=folder)
    talk = [{"role": "user", "content": "5"}]
    [(whole,), (cut,)] = (llm.chat(talk, params(n))[0].outputs for n in (5, 2))
    assert whole.text == " 5 6"
    assert whole.message == {"role": "assistant", "content": "6", "reasoning_content": "5"}
    assert cut.message == {"role": "assistant", "content": "", "reasoning_content": "5"}
    form = StructuredOutputsParams(regex=" 6")
    [formed] = llm.chat(talk, params(5, structured_outputs=form))[0].outputs
    assert formed.message == {"role": "assistant", "content": " 6", "reasoning_content": "5"}, "the form has the space"
    assert llm.generate("5", params())[0].outputs[0].message is None


@pytest.mark.parametrize(
    ("stop", "text", "reason", "content"),
    [("5 6", " 5 6", None, "6"), ("</think>", " 5", "</think>", "")],
)
def test_stop_strings_are_found_in_the_text_with_its_tags_as_over_http(
    start, tmp_path, model, stop, text, reason, content
):
    folder, begin, end = thinking_model(model, tmp_path)
    tokens = [begin, 5, end, 6, 2]

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest):
            for place, token in enumerate(tokens):
                finish = FinishReason.STOP if token == 2 else None
                core.send(output(1, message.request_id, place, [token], finish), peer)

    [whole] = start(script, model=folder).chat([{"role": "user", "content": "5"}], params(9, stop=[stop]))[0].outputs
    assert (whole.text, whole.finish_reason, whole.stop_reason) == (text, "stop", reason)
    assert whole.message == {"role": "assistant", "content": content, "reasoning_content": "5"}
    server = Server(Path(folder))
    server.engine.outputs, server.engine.eos = [tokens[:-1]], 2
    [choice] = server.chat(stop=[stop])["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": content or None,
        "reasoning": "5",
        "reasoning_content": "5",
    }
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)


def test_a_budget_of_reasoning_is_sent_in_the_models_tokens(start, tmp_path, model):
    thinking, begin, end = thinking_model(model, tmp_path)
    llm, budget = start(model=thinking), params(thinking_token_budget=6)
    llm.generate(["5", "<think> 5 6", [begin, 5, end, 6]], budget)
    llm.chat([{"role": "user", "content": "5"}], budget)
    llm.chat([{"role": "user", "content": "5"}], budget, chat_template_kwargs={"opens": True})
    sent = [request.sampling_params.thinking for request in core_of(llm).all(EngineCoreRequest)]
    assert sent == [ThinkingBudget(6, (begin,), (end,), used) for used in (None, 2, None, None, 0)]
    with pytest.raises(InvalidRequest, match="--reasoning-parser"):
        start().generate(["5"], budget)

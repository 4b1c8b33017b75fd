"""Pooling over HTTP: embeddings, vectors and classes, with every form of input."""

import pytest

from ...http_server import Server
from .pooling_server import CLASSIFIES, EMBEDS, bert_folder, decoded, numbers, pooling_server

E, P, C = "/v1/embeddings", "/pooling", "/classify"


def sent(server: Server) -> list[str]:
    return [server.tokenizer.decode(each.prompt_token_ids, skip_special_tokens=False) for each in server.engine.pooled]


def test_an_embedding_has_openais_form(folder):
    server = pooling_server(folder)
    answer = server.good(E, {"input": "abc", "model": "tiny", "user": "u", "request_id": "r"})
    ids = server.tokenizer.encode("abc")
    assert answer == {
        "id": "embd-r",
        "object": "list",
        "created": answer["created"],
        "model": "tiny",
        "data": [{"index": 0, "object": "embedding", "embedding": numbers(server, ids)}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0, "prompt_tokens_details": None},
    }


@pytest.mark.parametrize("kind", [str, list])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_many_inputs_are_answered_in_order_with_the_bits_of_each_alone(folder, kind, count):
    server = pooling_server(folder)
    texts = [chr(97 + i % 26) * (1 + i % 7) for i in range(count)]
    inputs = texts if kind is str else [server.tokenizer.encode(text) for text in texts]
    data = server.good(E, {"input": inputs})["data"]
    assert [each["index"] for each in data] == [*range(count)]
    assert [each["embedding"] for each in data] == [numbers(server, server.tokenizer.encode(text)) for text in texts]
    alone = [server.good(E, {"input": each})["data"][0]["embedding"] for each in inputs]
    assert [each["embedding"] for each in data] == alone


def test_base64_has_the_same_numbers(folder):
    server = pooling_server(folder)
    plain = server.good(E, {"input": ["abc", "de"], "encoding_format": "float"})["data"]
    packed = server.good(
        E, {"input": ["abc", "de"], "encoding_format": "base64", "embed_dtype": "float32", "endianness": "little"}
    )["data"]
    assert [decoded(each["embedding"]) for each in packed] == [each["embedding"] for each in plain]


def test_fields_reach_the_engine(folder):
    server = pooling_server(folder)
    body = {"input": "abc", "dimensions": 3, "use_activation": False, "priority": 2, "cache_salt": "s", "timeout": 9}
    (one,) = server.good(E, body | {"skip_reading_prefix_cache": True})["data"]
    assert one["embedding"] == numbers(server, server.tokenizer.encode("abc"), dimensions=3, use_activation=False)
    (asked,) = server.engine.pooled
    assert asked.params.skip_reading_prefix_cache
    assert (asked.terms["priority"], asked.terms["cache_salt"]) == (2, "s")
    assert 8 < asked.terms["timeout_s"] <= 9
    server.good(E, {"input": "a"})
    assert server.engine.pooled[-1].terms["timeout_s"] == 0.0


def test_a_conversation_is_embedded_as_rendered_by_the_template(folder):
    server = pooling_server(folder)
    messages = [{"role": "user", "content": "hi"}]
    server.good(E, {"messages": messages})
    server.good(E, {"messages": messages, "add_generation_prompt": True, "chat_template_kwargs": {"shout": True}})
    server.good(E, {"messages": messages * 9, "truncate_prompt_tokens": 9})
    assert sent(server) == ["<user>hi", "<user>hi!<assistant>", "<user>hi<"]


def test_a_prompt_may_be_as_long_as_the_context(folder):
    server = pooling_server(folder)
    server.good(E, {"input": ["a" * 64, "b"]})
    for given in ("a" * 65, ["b", "a" * 65], [[1], [2] * 65], [3] * 65):
        error = server.ask("POST", E, {"input": given}).json()["error"]
        assert (error["code"], error["param"]) == (400, "input")
        place = "input[1]" if len(given) == 2 else "input"
        assert error["message"] == (
            f"This model accepts at most 64 tokens; {place} has 65. Shorten it, or send truncate_prompt_tokens: -1 "
            "to use only its first 64 tokens"
        )
    error = server.ask("POST", E, {"messages": [{"role": "user", "content": "a" * 60}]}).json()["error"]
    assert error["message"].startswith("This model accepts at most 64 tokens; messages has 66.")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, "abcde"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, "abcde"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, "VWXYZ"),
        ({"truncate_prompt_tokens": 64}, None),
        ({"truncate_prompt_tokens": -1}, None),
    ],
)
def test_longer_prompts_are_cut_on_request(folder, fields, kept):
    server = pooling_server(folder)
    text = "abcdefghijklmnopqrstuvwxyz" * 3 + "VWXYZ"
    for given in (text, server.tokenizer.encode(text)):
        server.good(E, {"input": given} | fields)
    assert sent(server) == [kept or text[:64]] * 2


def test_special_tokens_around_a_text_stay_when_it_is_cut(folder, tmp_path):
    server = pooling_server(bert_folder(folder, tmp_path))
    for fields in (
        {},
        {"truncate_prompt_tokens": 5},
        {"truncate_prompt_tokens": 5, "truncation_side": "left"},
        {"add_special_tokens": False},
        {"truncate_prompt_tokens": 2, "add_special_tokens": False},
    ):
        server.good(E, {"input": "abcdef"} | fields)
    assert sent(server) == ["[CLS]abcdef[SEP]", "[CLS]abc[SEP]", "[CLS]def[SEP]", "abcdef", "ab"]


def test_sentence_transformers_files_are_followed(folder, tmp_path):
    prompts = {"query": "Q: ", "document": "D: "}
    bert_folder(
        folder,
        tmp_path,
        config_sentence_transformers={"prompts": prompts, "default_prompt_name": "document"},
        sentence_bert_config={"max_seq_length": 12, "do_lower_case": False},
        config={"matryoshka_dimensions": [4, 8]},
    )
    server = pooling_server(tmp_path)
    for fields in ({}, {"prompt_name": "query"}, {"prompt_name": ""}, {"truncate_prompt_tokens": -1}):
        server.good(E, {"input": "abcdefghijk" if "truncate_prompt_tokens" in fields else "abc"} | fields)
    server.good(E, {"input": server.tokenizer.encode("xyz"), "dimensions": 4})
    assert sent(server) == [
        *("[CLS]D: abc[SEP]", "[CLS]Q: abc[SEP]", "[CLS]abc[SEP]", "[CLS]D: abcdefg[SEP]", "[CLS]xyz[SEP]")
    ]
    for fields, says in (
        ({"prompt_name": "other"}, "prompt_name is 'other'; this model has document, query"),
        ({"input": "abcdefghijk"}, "This model accepts at most 12 tokens; input has 16."),
        ({"dimensions": 5}, "dimensions is 5; this model supports 4, 8 (matryoshka_dimensions)"),
        ({"dimensions": 9}, "dimensions is 9; this model's embeddings have 8"),
    ):
        assert says in server.ask("POST", E, {"input": "abc"} | fields).json()["error"]["message"]


def test_each_task_has_its_form(folder):
    server = pooling_server(folder, (*EMBEDS, *CLASSIFIES))
    ids, width = server.tokenizer.encode("abc"), {"embed": 8, "classify": 3, "token_embed": 8, "token_classify": 3}
    for task, columns in width.items():
        expected = numbers(server, ids, task=task)
        if task.startswith("token_"):
            expected = [expected[start : start + columns] for start in range(0, len(expected), columns)]
        answer = server.good(P, {"input": "abc", "task": task})
        assert answer["data"] == [{"index": 0, "object": "pooling", "data": expected}]
        packed = server.good(P, {"input": ids, "task": task, "encoding_format": "base64"})["data"][0]["data"]
        assert decoded(packed) == numbers(server, ids, task=task)
    assert server.good(P, {"input": "abc"})["data"] == server.good(P, {"input": "abc", "task": "token_embed"})["data"]
    assert answer["id"].startswith("pool-")


def test_steps_and_columns_reach_the_engine(folder):
    server = pooling_server(folder, CLASSIFIES)
    server.good(P, {"input": "abc", "step_tag_id": 3, "returned_token_ids": [2, 0]})
    params = server.engine.pooled[-1].params
    assert (params.task, params.step_tag_id, params.returned_token_ids) == ("token_classify", 3, (2, 0))


def test_a_classification_names_the_most_likely_class(folder, tmp_path):
    bert_folder(folder, tmp_path, config={"id2label": {"0": "sad", "1": "glad"}})
    server = pooling_server(tmp_path, CLASSIFIES)
    answer = server.good(C, {"input": ["abc", "d"]})
    for one, prompt in zip(answer["data"], server.engine.pooled, strict=True):
        probs = numbers(server, prompt.prompt_token_ids, task="classify")
        likeliest = probs.index(max(probs))
        assert one["probs"] == probs
        assert (one["num_classes"], one["label"]) == (3, ["sad", "glad", "LABEL_2"][likeliest])
    assert answer["id"].startswith("classify-")
    assert server.good(C, {"messages": [{"role": "user", "content": "x"}], "use_activation": False})["data"]
    assert not server.engine.pooled[-1].params.use_activation


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        (E, {}, "input", "input is required"),
        (E, {"input": []}, "input", "length >= 1"),
        (E, {"input": ""}, "input", "input is empty"),
        (E, {"input": ["a", ""]}, "input", "input[1] is empty"),
        (E, {"input": [[]]}, "input", "input is empty"),
        (E, {"input": ["a", 1]}, "input", "mixes types"),
        (E, {"input": [400]}, "input", "token 400; the vocabulary is 0..399"),
        (E, {"input": [-1]}, "input[0]", "-1"),
        (E, {"input": 5}, "input", "expected"),
        (E, {"input": ["a"] * 2049}, "input", "2049 entries; a request may have at most 2048"),
        (E, {"input": "a", "messages": [{"role": "user", "content": "b"}]}, "input", "both input and messages"),
        (E, {"input": "a", "add_generation_prompt": True}, "add_generation_prompt", "only to messages"),
        (E, {"messages": [{"role": "user", "content": "b"}], "prompt_name": "q"}, "prompt_name", "only to input"),
        (E, {"input": "a", "prompt_name": "q"}, "prompt_name", "this model has no prompts"),
        (E, {"input": "a", "encoding_format": "int8"}, "encoding_format", "float, base64"),
        (E, {"input": "a", "embed_dtype": "float16"}, "embed_dtype", "float32"),
        (E, {"input": "a", "endianness": "big"}, "endianness", "native, little"),
        (E, {"input": "a", "dimensions": 0}, "dimensions", ">= 1"),
        (E, {"input": "a", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "it must be from 1 to 64"),
        (E, {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "it must be from 1 to 64"),
        (E, {"input": "a", "truncation_side": "left"}, "truncation_side", "needs truncate_prompt_tokens"),
        (E, {"input": "a", "stream": True}, "stream", "this answer is not streamed"),
        (E, {"input": "a", "normalize": True}, "normalize", "use use_activation"),
        (E, {"input": "a", "n": 2}, "n", "not a known field"),
        (E, {"input": "a", "max_tokens": 2}, "max_tokens", "not a known field"),
        (E, {"input": "a" * 600_000, "truncate_prompt_tokens": 5}, "input", "truncation accepts at most 262144"),
        (P, {"input": "a", "task": "classify"}, "task", "task is classify; tiny serves embed, token_embed"),
        (P, {"input": "a", "task": "rank"}, "task", "expected one of"),
    ],
)
def test_invalid_fields_are_refused_by_name(folder, path, body, param, says):
    server = pooling_server(folder)
    response = server.ask("POST", path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), response.text
    assert says in error["message"]
    assert not server.engine.pooled


def test_harmless_fields_and_nulls_are_accepted(folder):
    server = pooling_server(folder)
    server.good(E, {"input": "a", "stream": False, "encoding_format": None, "dimensions": None, "user": None})


@pytest.mark.parametrize(
    ("path", "tasks", "says"),
    [
        (E, ("generate",), "/v1/embeddings needs a model that serves embed; tiny serves generate: use /v1/chat/comp"),
        (
            C,
            EMBEDS,
            "/classify needs a model that serves classify; tiny serves embed, token_embed: use /v1/embeddings, /p",
        ),
        (
            "/rerank",
            ("generate",),
            "/rerank needs a model that serves embed or token_embed or classify; tiny serves generate",
        ),
        (
            "/v1/completions",
            EMBEDS,
            "/v1/completions needs a model that serves generate; tiny serves embed, token_embed",
        ),
        (
            "/v1/chat/completions",
            CLASSIFIES,
            "/v1/chat/completions needs a model that serves generate; tiny serves class",
        ),
        ("/v1/chat/completions/batch", EMBEDS, "/v1/chat/completions/batch needs a model that serves generate"),
        ("/v1/responses", EMBEDS, "/v1/responses needs a model that serves generate"),
        ("/v1/messages", EMBEDS, "/v1/messages needs a model that serves generate"),
        ("/inference/v1/generate", EMBEDS, "/inference/v1/generate needs a model that serves generate"),
    ],
)
def test_a_route_is_refused_if_the_model_does_not_serve_its_task(folder, path, tasks, says):
    server = pooling_server(folder, tasks)
    response = server.ask("POST", path, {"whatever": 1}, **{"Idempotency-Key": "k" * 16})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(says)


@pytest.mark.parametrize(
    ("tasks", "path", "body"),
    [
        (EMBEDS, E, {"input": ["abc", "de"]}),
        (EMBEDS, E, {"messages": [{"role": "user", "content": "hi"}]}),
        (EMBEDS, "/pooling", {"input": "abc", "task": "token_embed"}),
        (EMBEDS, "/v2/embed", {"texts": ["abc"]}),
        (EMBEDS, "/score", {"queries": "abc", "documents": ["d", "e"]}),
        (EMBEDS, "/score", {"text_1": "abc", "text_2": "d"}),
        (EMBEDS, "/rerank", {"query": "abc", "documents": ["d", "e"]}),
        (CLASSIFIES, "/classify", {"input": "abc"}),
        (("token_embed",), "/pooling", {"input": "abc"}),
        (("generate", "embed"), E, {"input": "abc"}),
        (("generate", "embed"), "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_sagemakers_route_serves_the_bodies_of_the_others(folder, tasks, path, body):
    server = pooling_server(folder, tasks)
    answer, same = (server.good(each, body) for each in ("/invocations", path))
    for name in ("id", "created"):
        answer.pop(name, None), same.pop(name, None)
    assert answer == same


@pytest.mark.parametrize(
    ("tasks", "body", "says"),
    [
        (EMBEDS, {"prompt": "x"}, "/v1/completions needs a model that serves generate; tiny serves embed"),
        (("generate",), {"input": "x"}, "/v1/embeddings needs a model that serves embed; tiny serves generate"),
        (("generate",), {"query": "x", "documents": ["d"]}, "/rerank needs a model that serves embed or token_embed"),
        (CLASSIFIES, b"no JSON", "/v1/completions needs a model that serves generate"),
    ],
)
def test_an_invocation_that_the_model_does_not_serve_is_refused(folder, tasks, body, says):
    response = pooling_server(folder, tasks).ask("POST", "/invocations", body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(says)


def test_a_model_that_serves_both_tasks_answers_both_routes(folder):
    server = pooling_server(folder, ("generate", "embed"))
    assert server.complete()["choices"][0]["text"] == "hello"
    assert server.good(E, {"input": "abc"})["data"]

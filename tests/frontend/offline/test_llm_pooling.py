"""Pooling with LLM over a fake engine."""

import math
from dataclasses import fields
from operator import mul
from pathlib import Path

import pytest

from paged_serve import LoRARequest, PoolingParams
from paged_serve.frontend.offline.llm import LLM
from paged_serve.frontend.offline.pooling import outputs
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import EngineCoreRequest, RejectReason, RequestRejected
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..adapter_folders import make_adapter_folder
from ..fake_core import POOLING, pool
from .pooling_llm import EMBEDS, PROMPTS, flat, ids, numbers, pooling_models, scripted_supervisors, sent
from .running_llm import core_of

PAGE = (Path(__file__).parents[3] / "docs" / "pooling.md").read_text()


model = pytest.fixture(scope="module")(pooling_models)
supervisor = pytest.fixture(scripted_supervisors)


@pytest.fixture
def start(model, supervisor):
    started = []

    def start(script=pool, tasks=POOLING["tasks"], num_labels=3, **options):
        supervisor(script, tasks=tasks, num_labels=num_labels)
        started.append(LLM(model=model, **options))
        return started[-1]

    yield start
    for llm in started:
        llm.close()


def test_embeddings_are_in_the_order_of_the_prompts(start):
    llm = start()
    found = llm.embed(PROMPTS)
    assert [output.outputs.embedding for output in found] == [numbers(ids(text)) for text in PROMPTS]
    assert [output.prompt_token_ids for output in found] == [ids(text) for text in PROMPTS]
    assert [output.request_id for output in found] == [str(number) for number in range(len(PROMPTS))]
    assert found[0].outputs.hidden_size == 8
    assert all(output.finished for output in found)


def test_classes_and_rewards_have_their_shapes(start):
    llm = start()
    (classes,) = llm.classify("5 6")
    assert classes.outputs.probs == numbers(ids("5 6"), task="classify")
    assert classes.outputs.num_classes == 3
    (reward,) = llm.reward("5 6")
    assert reward.outputs.data.shape == (4, 3)
    assert flat(reward.outputs.data.tolist()) == numbers(ids("5 6"), task="token_classify")


@pytest.mark.parametrize("task", POOLING["tasks"])
def test_encode_accepts_any_task(start, task):
    llm = start()
    (output,) = llm.encode([5, 6], pooling_task=task)
    data = output.outputs.data.tolist()
    assert (flat(data) if task.startswith("token_") else data) == numbers([5, 6], task=task)
    params = PoolingParams(task=task, use_activation=False)
    assert llm.encode([5, 6], params)[0].outputs.data.tolist() != data
    assert core_of(llm).all(EngineCoreRequest)[-1].pooling_params == params


def test_without_a_task_the_first_task_of_the_model_is_encoded(start):
    assert start().encode("5")[0].outputs.data.shape == (3, 8)
    assert start(tasks=("classify",)).encode("5")[0].outputs.data.shape == (3,)


def test_parameters_are_shared_or_given_per_prompt(start):
    llm = start()
    assert {
        len(output.outputs.embedding) for output in llm.embed(["1", "2"], pooling_params=PoolingParams(dimensions=3))
    } == {3}
    each = [PoolingParams(task="classify", dimensions=size) for size in (2, 4)]
    assert [len(output.outputs.embedding) for output in llm.embed(["1", "2"], pooling_params=each)] == [2, 4]


def test_prompts_are_cut_or_extended_on_request(start):
    llm = start()
    long = "1 2 3 4 5 6"
    llm.embed(long, truncate_prompt_tokens=4)
    llm.embed(long, tokenization_kwargs={"truncate_prompt_tokens": 4, "truncation_side": "left"})
    llm.embed(long, tokenization_kwargs={"add_special_tokens": False})
    llm.embed([1, 2, 3], truncate_prompt_tokens=2)
    llm.embed({"prompt": long, "cache_salt": "s"}, truncate_prompt_tokens=-1, prompt_name="query")
    assert sent(llm) == [[998, 1, 2, 999], [998, 5, 6, 999], [1, 2, 3, 4, 5, 6], [1, 2], ids(f"77 {long}")]
    assert core_of(llm).all(EngineCoreRequest)[-1].cache_salt == "s"
    for method in (llm.embed, llm.classify, llm.reward, llm.encode):
        method("1", prompt_name="query")
        assert sent(llm)[-1] == ids("77 1")


def test_scores_of_embeddings_are_cosines(start):
    llm = start(tasks=EMBEDS)
    found = llm.score("1 2", PROMPTS)
    a = numbers(ids("1 2"))
    for scored, text in zip(found, PROMPTS, strict=True):
        b = numbers(ids(text))
        norms = math.fsum(x * x for x in a) * math.fsum(x * x for x in b)
        assert scored.outputs.score == math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(norms)
        assert scored.prompt_token_ids == ids("1 2") + ids(text)
    both = llm.score(PROMPTS, PROMPTS)
    assert {output.outputs.score for output in both} == {1.0}


def test_scores_of_late_interaction_count_the_best_match_of_each_token(start):
    llm = start(tasks=("token_embed",))
    a, size = numbers(ids("1 2"), task="token_embed"), POOLING["embedding_size"]
    for scored, text in zip(llm.score("1 2", PROMPTS[:5]), PROMPTS[:5], strict=True):
        b = numbers(ids(text), task="token_embed")
        dots = [[math.fsum(map(mul, x, y)) for y in rows_of(b, size)] for x in rows_of(a, size)]
        assert scored.outputs.score == math.fsum(map(max, dots))
        assert scored.prompt_token_ids == ids("1 2") + ids(text)


def rows_of(numbers, columns):
    return [numbers[at : at + columns] for at in range(0, len(numbers), columns)]


def test_a_cross_encoder_reads_pairs(start):
    llm = start(tasks=("classify", "token_classify"), num_labels=1)
    found = llm.score("1 2", ["3", "4 5"])
    pairs = [[998, 1, 2, 999, 3, 999], [998, 1, 2, 999, 4, 5, 999]]
    limits = POOLING | {"num_labels": 1}
    assert sent(llm) == pairs
    assert [[output.outputs.score] for output in found] == [
        numbers(tokens, limits, task="classify", second_text=4) for tokens in pairs
    ]
    llm.score("1 2 3 4", "5 6 7 8 9", truncate_prompt_tokens=7)
    assert sent(llm)[-1] == [998, 1, 2, 999, 5, 6, 999]
    with pytest.raises(InvalidRequest, match="a pair of texts always has its special tokens"):
        llm.score("1", "2", tokenization_kwargs={"add_special_tokens": False})


@pytest.mark.parametrize("tasks", [POOLING["tasks"], EMBEDS, ("token_embed",), ("classify", "token_classify")])
def test_every_method_computes_with_the_adapter_of_the_request(start, tmp_path, tasks):
    llm = start(tasks=tasks, num_labels=1, enable_lora=True)
    folder = make_adapter_folder(tmp_path / "sql")
    sql = LoRARequest("sql", 1, folder)
    methods = {"embed": llm.embed, "classify": llm.classify, "token_classify": llm.reward}
    methods |= {"token_embed": lambda prompts, **options: llm.encode(prompts, pooling_task="token_embed", **options)}
    for task in tasks:
        methods[task](["1", "2"], lora_request=[sql, None])
        methods[task]("3", lora_request=sql)
        assert adapters_sent(llm)[-3:] == [folder, None, folder]
    num_sent = len(sent(llm))
    llm.score("1", ["2", "3"], lora_request=sql)
    assert set(adapters_sent(llm)[num_sent:]) == {folder}


def adapters_sent(llm):
    adapters = [request.adapter for request in core_of(llm).all(EngineCoreRequest)]
    return [adapter and adapter.path for adapter in adapters]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda llm: llm.embed(["1", ""], tokenization_kwargs={"add_special_tokens": False}), "prompts[1] is empty"),
        (lambda llm: llm.embed([[1], [1000]]), "prompts[1] has token 1000"),
        (lambda llm: llm.embed([1] * 4097), "This model accepts at most 4096 tokens; prompts[0] has 4097"),
        (lambda llm: llm.embed("1", truncate_prompt_tokens=5000), "truncate_prompt_tokens is 5000"),
        (lambda llm: llm.embed("1", pooling_params=PoolingParams(dimensions=9)), "this model's embeddings have 8"),
        (lambda llm: llm.embed("1", pooling_params=SamplingParams()), "pooling_params is of type SamplingParams"),
        (lambda llm: llm.embed("1", pooling_params=[PoolingParams()] * 2), "pooling_params has 2 entries for 1"),
        (lambda llm: llm.embed("1", pooling_params=[]), "pooling_params has 0 entries for 1"),
        (lambda llm: llm.embed("1", prompt_name="other"), "prompt_name is 'other'; this model has query"),
        (lambda llm: llm.embed("1", pooling_task="embed"), "pooling_task is not a keyword of this method"),
        (lambda llm: llm.embed("1", lora_request=1), "lora_request is 1; pass LoRARequest(name, number, path)"),
        (lambda llm: llm.embed("1", lora_request=[]), "lora_request has 0 entries for 1"),
        (lambda llm: llm.embed("1", lora_request=LoRARequest("a", 1, "/a")), "LLM(enable_lora=True, max_loras=N)"),
        (lambda llm: llm.score("1", "2", lora_request=[None]), "lora_request is [None]; pass LoRARequest"),
        (lambda llm: llm.embed("1", prompt_name=5), "prompt_name is 5; it must be of the class str"),
        (lambda llm: llm.embed("1", truncate_prompt_tokens="5"), "truncate_prompt_tokens is '5'; it must be of the"),
        (lambda llm: llm.embed("1", tokenization_kwargs=5), "tokenization_kwargs is 5; it must be of the class"),
        (lambda llm: llm.embed("1", pooling_params=PoolingParams(dimensions="4")), "dimensions is '4'; it must be"),
        (lambda llm: llm.score("1", "2", pooling_params=5), "pooling_params is of type int; pass PoolingParams"),
        (lambda llm: llm.encode("1", pooling_task="score"), "pooling_task is 'score'; this model serves"),
        (lambda llm: llm.classify("1"), "pooling_task is 'classify'; this model serves embed, token_embed"),
        (lambda llm: llm.score(["1", "2"], "3"), "data_1 has 2 texts and data_2 1"),
        (lambda llm: llm.score("1", [2]), "data_2 must be a string or a list of strings"),
        (lambda llm: llm.score("1", ["2", "3\ud83d"]), r"data_2 has '\ud83d', half of a surrogate pair, at 1"),
        (lambda llm: llm.generate("1"), "task is generate; this model serves embed, token_embed"),
    ],
)
def test_invalid_pooling_requests_are_refused_and_leave_no_request_running(start, ask, says):
    llm = start(tasks=EMBEDS)
    with pytest.raises(InvalidRequest) as refused:
        ask(llm)
    assert says in str(refused.value)
    assert len(llm.embed("5")) == 1


@pytest.mark.parametrize("tasks", [EMBEDS, ("token_embed",), ("classify",)])
def test_a_score_is_refused_with_the_text_at_fault(start, tasks):
    llm, long = start(tasks=tasks, num_labels=1), "5 " * 4200
    for first, second, name in (("1", ["2", long], "data_2[1]"), (["1", long], ["2", "3"], "data_1[1]")):
        with pytest.raises(InvalidRequest) as refused:
            llm.score(first, second)
        assert name in str(refused.value)
        assert refused.value.param == name.partition("[")[0]


def test_a_generating_model_cannot_pool(start):
    llm = start(tasks=("generate",))
    with pytest.raises(InvalidRequest, match="pooling needs a model that serves one of token_embed"):
        llm.encode("1")


def test_a_prompt_refused_by_a_full_engine_is_submitted_again(start):
    refused = []

    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest) and len(refused) < 3:
            refused.append(message.request_id)
            core.send(RequestRejected(message.request_id, RejectReason.OVERLOADED, "full", retry_after_s=0.01), peer)
        else:
            pool(core, peer, message)

    llm = start(script)
    found = llm.embed(PROMPTS)
    assert [output.outputs.embedding for output in found] == [numbers(ids(text)) for text in PROMPTS]


def test_a_bar_counts_the_prompts(start):
    made = []

    class Bar:
        def __init__(self, total, **_):
            self.total, self.count = total, 0
            made.append(self)

        def update(self, count):
            self.count += count

        def close(self):
            pass

    start().embed(PROMPTS, use_tqdm=Bar)
    assert (made[0].total, made[0].count) == (len(PROMPTS), len(PROMPTS))


@pytest.mark.parametrize(
    "output",
    [
        outputs.PoolingRequestOutput,
        outputs.EmbeddingOutput,
        outputs.ClassificationOutput,
        outputs.ScoringOutput,
        outputs.PoolingOutput,
    ],
    ids=lambda output: output.__name__,
)
def test_every_field_of_an_output_is_named(output):
    for name in [field.name for field in fields(output)]:
        assert f"`{name}`" in PAGE or f".{name}`" in PAGE

"""Options of LLM over a fake engine: those of its start, and those of a request."""

import pytest

import paged_serve
from paged_serve import LoRARequest
from paged_serve.frontend.config.llm_options import config_of
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import unpack_ids

from ..adapter_folders import make_adapter_folder
from .running_llm import core_of, llms, models, params

model = pytest.fixture(scope="module")(models)
start = pytest.fixture(llms)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_num_sequences": 3}, "did you mean max_num_seqs"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5"),
        ({"model_impl": "vllm"}, "model_impl='vllm'"),
        ({"dtype": "int3"}, "dtype='int3'"),
        ({"max_model_len": 0}, "max_model_len=0"),
    ],
)
def test_unknown_options_are_refused_not_ignored(start, options, reason):
    with pytest.raises(ConfigError, match=reason):
        start(**options)


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (5, {}, "model=5: must be a folder, a GGUF file, or a name on the Hugging Face hub"),
        (b"demo", {}, "model=b'demo': must be"),
        ("", {"served_model_name": 5}, "served_model_name=5: "),
        ("", {"tokenizer": 5}, "tokenizer=5: is not a string"),
        ("", {"tokenizer_mode": "slow"}, "tokenizer_mode='slow': must be 'auto'"),
        ("", {"nnodes": 2}, "LLM has no nnodes: all ranks run on one host; use tensor_parallel_size"),
        (
            "",
            {"speculative_config": {"method": "ngram"}},
            "LLM has no speculative_config: use speculative, draft_model",
        ),
        ("", {"spec_method": "ngram"}, "LLM has no spec_method: use speculative, draft_model"),
        ("", {"task": "transcription"}, "LLM has no task: the files of a model determine its tasks"),
        ("", {"enable_lora": "\ud83d"}, r"enable_lora='\ud83d': has half of a surrogate pair"),
    ],
)
def test_options_of_another_type_are_refused_by_name(model, options, reason):
    with pytest.raises(ConfigError) as refused:
        config_of(model, options)
    assert str(refused.value).startswith(reason)


def test_options_of_vllm_without_an_effect_are_accepted():
    nothing = {"task": "embed", "compilation_config": 3, "structured_outputs_config": {"backend": "xgrammar"}}
    nothing |= {"attention_config": {}, "return_sampling_mask": False, "offload_group_size": 0, "enforce_eager": True}
    assert config_of("", nothing) == config_of("", {})


def test_a_path_is_as_good_as_its_text():
    folder = demo_model_folder()
    assert config_of(folder, {"tokenizer": folder}) == config_of(str(folder), {"tokenizer": str(folder)})


def test_objects_are_as_good_as_their_json():
    objects = {"default_chat_template_kwargs": {"shout": True}, "override_generation_config": {"top_k": 3}}
    config = config_of("", objects)
    assert config.server.default_chat_template_kwargs == '{"shout":true}'
    assert config.model.override_generation_config == '{"top_k":3}'


def test_options_reach_the_configuration(start):
    llm = start(
        dtype="half",
        max_model_len=64,
        enable_prefix_caching=False,
        num_gpu_blocks_override=9,
        served_model_name="me",
        enforce_eager=True,
        seed=3,
    )
    config = llm.config
    assert (config.model.dtype, config.model.max_model_len, config.model.seed) == ("float16", 64, 3)
    assert (config.cache.enable_prefix_caching, config.cache.num_blocks) == (False, 9)
    assert config.model.served_model_names == ("me",)
    assert llm.get_tokenizer().encode("5") == [5]


def test_text_is_left_out_on_request(start):
    llm = start()
    [[whole], [none]] = [llm.generate("5", params(detokenize=shows))[0].outputs for shows in (True, False)]
    assert none.text == "" != whole.text
    assert none.token_ids == whole.token_ids


def test_tokenization_kwargs_control_how_prompts_become_tokens(start):
    llm = start()
    for kwargs, ids in [
        ({"truncate_prompt_tokens": 2}, [6, 7]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [5, 6]),
        ({"truncate_prompt_tokens": 9, "add_special_tokens": False}, [5, 6, 7]),
    ]:
        for prompt in ("5 6 7", [5, 6, 7]):
            assert llm.generate(prompt, params(), tokenization_kwargs=kwargs)[0].prompt_token_ids == ids
        talk = [{"role": "user", "content": "5 6"}]
        assert llm.chat(talk, params(), tokenization_kwargs=kwargs)[0].prompt_token_ids == ids
    long = [5] * 5000
    for limit, left in ((10, 4086), (1, 4095)):  # of a context of 4096
        [output] = llm.generate(long, params(limit), tokenization_kwargs={"truncate_prompt_tokens": -1})
        assert len(output.prompt_token_ids) == left
    for kwargs in (
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"max_length": 3},
        {"truncation_side": "left\ud83d"},
    ):
        with pytest.raises(InvalidRequest, match="tokenization_kwargs"):
            llm.generate("5", params(), tokenization_kwargs=kwargs)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"lora_request": "x"}, "lora_request is 'x'; pass LoRARequest"),
        ({"mm_processor_kwargs": {"a": 1}}, "only text is served; leave it out, or {} or None"),
        ({"chat_template_content_format": "openai"}, "as one text; leave it out, or 'auto' or 'string' or None"),
        ({"use_tdqm": False}, "did you mean use_tqdm?"),
    ],
)
def test_keywords_of_vllm_are_accepted_with_values_that_have_no_effect(start, keywords, words):
    llm = start()
    nothing = {"lora_request": None, "mm_processor_kwargs": {}, "chat_template_content_format": "auto"}
    talk = [{"role": "user", "content": "5"}]
    assert llm.chat(talk, params(), **nothing) == llm.chat(talk, params())
    assert llm.generate("5", params(), **nothing) == llm.generate("5", params())
    for ask in (lambda: llm.chat(talk, params(), **keywords), lambda: llm.generate("5", params(), **keywords)):
        with pytest.raises(InvalidRequest) as refused:
            ask()
        assert words in str(refused.value)


def test_an_empty_list_of_values_is_no_value_for_each_prompt(start):
    llm = start()
    for name in ("sampling_params", "priority", "lora_request"):
        with pytest.raises(InvalidRequest, match=f"{name} has 0 entries for 2 prompts"):
            llm.generate(["5", "6"], **{"sampling_params": params(), name: []})


def test_beams_need_a_width_and_a_length():
    for fields in ({"beam_width": 0, "max_tokens": 1}, {"beam_width": 1, "max_tokens": 0}):
        with pytest.raises(InvalidRequest, match="must be an integer of at least 1"):
            paged_serve.BeamSearchParams(**fields)


def test_beams_carry_the_salts_of_their_prompts(start):
    llm = start()
    prompts = [{"prompt_token_ids": [5], "cache_salt": "s"}, [6]]
    llm.beam_search(prompts, paged_serve.BeamSearchParams(beam_width=2, max_tokens=1))
    assert {pack(request): request.cache_salt for request in core_of(llm).all(EngineCoreRequest)} == {5: "s", 6: ""}


def test_a_beam_search_without_its_parameters_is_refused_by_name(start):
    with pytest.raises(InvalidRequest, match=r"params is SamplingParams.*; it must be of the class BeamSearchParams"):
        start().beam_search([5], params())


def test_prompts_carry_the_adapters_of_their_requests(start, tmp_path):
    llm = start(enable_lora=True)
    folder = make_adapter_folder(tmp_path / "sql")
    sql = LoRARequest("sql", 1, folder)
    llm.generate([[5], [6]], params(), lora_request=[sql, None])
    llm.generate([[7]], params(), lora_request=sql)
    carried = {pack(request): request.adapter for request in core_of(llm).all(EngineCoreRequest)}
    assert [carried[token] and carried[token].path for token in (5, 6, 7)] == [folder, None, folder]
    make_adapter_folder(tmp_path / "sql", b"new weights")
    llm.generate([[8]], params(), lora_request=sql)
    [changed] = [each.adapter for each in core_of(llm).all(EngineCoreRequest) if pack(each) == 8]
    assert changed.digest != carried[5].digest
    with pytest.raises(InvalidRequest, match="lora_request has 1 entries for 2 prompts"):
        llm.generate([[5], [6]], params(), lora_request=[sql])


def test_an_adapter_needs_places(start, tmp_path):
    folder = make_adapter_folder(tmp_path / "sql")
    with pytest.raises(InvalidRequest, match="enable_lora=True"):
        start().generate([[5]], params(), lora_request=LoRARequest("sql", 1, folder))


def pack(request):
    """The first token of a request's prompt."""
    return unpack_ids(request.prompt_token_ids)[0]


@pytest.mark.parametrize(("name", "path"), [("x" * 257, ""), ("", ""), ("\udcff", ""), ("x", "\0"), ("x", "/\udcff")])
def test_an_adapter_that_no_message_can_carry_is_refused_before_it_is_sent(start, tmp_path, name, path):
    llm = start(enable_lora=True)
    folder = make_adapter_folder(tmp_path / "sql")
    llm.generate([[5]], params(), lora_request=LoRARequest("sql", 1, folder))
    with pytest.raises(InvalidRequest, match="LoRA adapter"):
        llm.generate([[6]], params(), lora_request=LoRARequest(name, 1, folder + path))
    assert [pack(request) for request in core_of(llm).all(EngineCoreRequest)] == [5]

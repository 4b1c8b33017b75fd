"""`paged-serve model.gguf` and `LLM("model.gguf")`: the answers of the folder that the file was made of."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder

from ...gguf_files import Type, write_gguf
from ..serving import ROOT, serving

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
SMALL = {"max_num_seqs": 8, "num_blocks": 128, "threads": 1}
PROMPT_TOKENS = 4  # th, e, a space, and the special token
PROMPTS = [{"prompt_token_ids": list(range(5 + row, 90, 3 + row))} for row in range(3)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        found = tmp_path_factory.mktemp("home")
        patch.setenv("HF_HOME", str(found))
        yield found


def demo_file(folder: Path, kind=None) -> str:
    return str(write_gguf(demo_model_folder(), folder / "demo.gguf", kind and (lambda name, tensor: kind)))


def answers(model: str, **options):
    with LLM(model, **SMALL, **options) as llm:
        found = [output.outputs[0] for output in llm.generate(PROMPTS, GREEDY)]
        numbers = [
            [(chosen[token].logprob, token) for token, chosen in zip(o.token_ids, o.logprobs, strict=True)]
            for o in found
        ]
        return numbers, llm.get_facts()


def answers_over_http(server):
    found = []
    for prompt in PROMPTS:
        sampling = {"temperature": 0, "max_tokens": 12, "logprobs": 1, "ignore_eos": True, "return_token_ids": True}
        status, answer = server.post("/v1/completions", {"prompt": prompt["prompt_token_ids"], **sampling})
        assert status == 200, answer
        [choice] = answer["choices"]
        found.append([*zip(choice["logprobs"]["token_logprobs"], choice["token_ids"], strict=True)])
    return found


def test_a_file_of_floats_gives_the_tokens_and_logprobs_of_its_folder(home, tmp_path, server):
    found, facts = answers(demo_file(tmp_path))
    assert "quantization" not in facts
    assert found == answers_over_http(server)


@pytest.mark.nightly
def test_a_file_of_blocks_gives_the_same_on_two_ranks_and_says_what_runs_in_blocks(home, tmp_path):
    file = demo_file(tmp_path, Type.Q8_0)
    found, facts = answers(file)
    assert facts["quantization"] == "29 matrices Q8_0"
    assert facts["dtype"] == "bfloat16"
    assert answers(file, tensor_parallel_size=2)[0] == found


def test_the_command_serves_a_file_of_blocks_with_its_own_tokenizer(home, tmp_path):
    with serving(demo_file(tmp_path, Type.Q4_0), "--num-blocks", "128") as server:
        body = {"prompt": "the <|im_end|>", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS
        assert "29 matrices Q4_0" in server.output()


def test_a_damaged_file_is_refused_before_anything_starts(home, tmp_path):
    file = Path(demo_file(tmp_path))
    shutil.copy(file, tmp_path / "short.gguf")
    with (tmp_path / "short.gguf").open("r+b") as opened:
        opened.truncate(100_000)
    command = [sys.executable, "-m", "paged_serve", str(tmp_path / "short.gguf"), "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "short.gguf is not a usable GGUF file: tensor" in done.stderr
    assert "Traceback" not in done.stderr

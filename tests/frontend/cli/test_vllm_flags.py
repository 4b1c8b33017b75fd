"""`serve` runs with command lines that were written for vLLM."""

import subprocess
import sys

import click
import pytest

from paged_serve.frontend.cli.serve import command
from paged_serve.frontend.config.llm_options import config_of
from paged_serve.frontend.config.options import resolve
from paged_serve.frontend.config.settings import BY_NAME
from paged_serve.frontend.config.vllm.flags import WITHOUT_EFFECT
from paged_serve.frontend.config.vllm.options import INSTEAD_OF_FLAG, NO_EFFECT, OF_SERVER


def parsed(*args):
    """(the configuration, the flags without effect)."""
    context = command.make_context("serve", list(args))
    return resolve(context.params, {}).config, context.meta[WITHOUT_EFFECT]


def test_flags_that_have_no_effect_are_left_out_and_listed():
    args = (
        "M --enforce-eager -tp 2 --no-enable-log-requests --load-format=auto --pipeline_parallel_size 1 -O3 --seed -1"
    )
    more = "--structured-outputs-config.backend xgrammar --hf-overrides {} --enable-auto-tool-choice --port 9"
    config, without_effect = parsed(*args.split()[:-2], *more.split())
    assert (config.model.model, config.parallel.tensor_parallel_size, config.server.port) == ("M", 2, 9)
    assert without_effect == [
        *("--enforce-eager", "--no-enable-log-requests", "--load-format auto", "--pipeline-parallel-size 1"),
        *("--optimization-level 3", "--structured-outputs-config.backend xgrammar", "--hf-overrides {}"),
        "--enable-auto-tool-choice",
    ]


def test_a_deployments_flags_for_speed_and_logs_have_no_effect():
    args = "--max-seq-len-to-capture 8192 --attention-backend FLASH_ATTN --swap-space 0 --logprobs-mode raw_logprobs"
    more = "-cc.mode=3 --disable-fastapi-docs --no-enable-expert-parallel --stream-interval 1 --max-log-len 10"
    config, without_effect = parsed("M", *args.split(), *more.split())
    assert config.model.model == "M"
    assert without_effect == [
        *("--max-seq-len-to-capture 8192", "--attention-backend FLASH_ATTN", "--swap-space 0"),
        *("--logprobs-mode raw_logprobs", "--compilation-config.mode 3", "--disable-fastapi-docs"),
        *("--no-enable-expert-parallel", "--stream-interval 1", "--max-log-len 10"),
    ]


def test_names_may_have_underscores_and_one_flag_several_values():
    config, without_effect = parsed(
        "M", "--served_model_name", "a", "b", "--max_model_len", "64", "--api-key", "k", "l"
    )
    assert (config.model.served_model_names, config.model.max_model_len) == (("a", "b"), 64)
    assert config.server.api_keys == ("k", "l")
    assert without_effect == []


def test_the_model_may_stand_behind_a_flag_of_one_value():
    for args in (["--served-model-name", "a", "M"], ["--enforce-eager", "M", "--served-model-name", "a"]):
        config, _ = parsed(*args)
        assert (config.model.model, config.model.served_model_names) == ("M", ("a",))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--pipeline-parallel-size 2", "--pipeline-parallel-size 2 is not supported: layers are not split"),
        ("-dp 2", "--data-parallel-size 2 is not supported: start one engine"),
        ("--tokenizer-mode=mistral", "--tokenizer-mode mistral is not supported: only auto is."),
        ("--no-enable-chunked-prefill", "--no-enable-chunked-prefill is not supported: long prompts are always split"),
        ("--enable-log-requests", "prompts are not logged"),
        ("--skip-tokenizer-init", "--skip-tokenizer-init is not supported: it is always off."),
        ("--speculative-config {}", "--speculative-config is not supported: use --speculative, --draft-model"),
        ("--stream-interval 4", "--stream-interval 4 is not supported: a request asks for it, with stream_interval."),
        ("--max-num-queued-reqs 4", "--max-num-queued-reqs is not supported: use --max-num-queued-requests."),
        ("--io-processor-plugin p", "--io-processor-plugin is not supported: use --plugin."),
        ("--distributed-timeout-seconds 9", "is not supported: use --step-timeout."),
        ("--enable-sleep-mode", "stop it to free them"),
        ("--enable-expert-parallel", "use --tensor-parallel-size"),
        ("--ssl-ca-certs f", "HTTPS needs a proxy"),
        ("--tokenizer-revision main", "use --revision"),
        ("--tool-parser-plugin f.py", "use --plugin"),
        ("--nnodes 2", "--nnodes 2 is not supported: all ranks run on one host"),
        ("--task", "--task needs a value."),
        ("--load-format --port 1", "--load-format needs a value."),
        ("--enforce-eager=false", "--enforce-eager takes no value."),
        ("--no-load-format auto", "No such option"),
        ("--zebra_x 2", "No such option"),
    ],
)
def test_other_values_and_flags_are_refused_with_what_to_use_instead(args, message):
    with pytest.raises(click.UsageError) as refused:
        parsed("M", *args.split())
    assert message in refused.value.format_message()


def test_the_name_of_a_kernel_stands_for_its_format():
    for kernel, quantization in (("awq_marlin", "awq"), ("gptq_marlin", "gptq"), ("modelopt_fp4", "modelopt")):
        config, _ = parsed("M", "--quantization", kernel)
        assert config.model.quantization == quantization
        assert config_of("", {"quantization": kernel}).model.quantization == quantization


def test_no_flag_of_our_own_is_left_out():
    ours = {name.replace("-", "_") for name in BY_NAME}
    assert not ours & {*NO_EFFECT, *OF_SERVER, *INSTEAD_OF_FLAG}


def test_a_server_names_in_its_log_the_flags_that_have_no_effect():
    args = [sys.executable, "-m", "paged_serve", "nowhere", "--enforce-eager", "--task", "generate"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "WARNING supervisor these options have no effect here: --enforce-eager, --task generate\n" in done.stderr

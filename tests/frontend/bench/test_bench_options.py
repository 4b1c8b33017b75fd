"""Options of a benchmark are checked before it starts: a model may take minutes to load, and a benchmark an hour."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from paged_serve.frontend.bench import latency, offline, serve, server_start, startup, throughput
from paged_serve.frontend.bench.load.load import LoadRequest
from paged_serve.frontend.offline.outputs import CompletionOutput, RequestOutput
from paged_serve.protocol.errors import ConfigError, EngineDead


@pytest.fixture(autouse=True)
def starts_nothing(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("started")

    monkeypatch.setattr(offline, "start_llm", fail)
    monkeypatch.setattr(server_start, "measure_start", fail)


@pytest.mark.parametrize(
    ("module", "options", "says"),
    [
        (throughput, ("--json", "/nowhere/r.json"), "'--json': there is no folder /nowhere"),
        (latency, ("--json", "/nowhere/r.json"), "'--json': there is no folder /nowhere"),
        (startup, ("--json", "/nowhere/r.json"), "'--json': there is no folder /nowhere"),
        (serve, ("--json", "/"), "'--json': File '/' is a directory"),
        (serve, ("--plot", "/nowhere/p.svg"), "'--plot': there is no folder /nowhere"),
        (throughput, ("--dataset", "/nowhere/d.jsonl"), "'--dataset': File '/nowhere/d.jsonl' does not exist"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_once(module, options, says):
    result = CliRunner().invoke(module.command, options)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())


def test_a_file_in_the_present_folder_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options in (("--json", "r.json"), ("--json", str(tmp_path / "r.json"))):
        assert str(CliRunner().invoke(throughput.command, options).exception) == "started"


class ShortContext:
    """An LLM whose context of 40 tokens cuts outputs."""

    limits = SimpleNamespace(max_model_len=40)

    def generate(self, prompts, params):
        lengths = (min(one.max_tokens, 40 - len(prompt)) for prompt, one in zip(prompts, params, strict=True))
        cut = (CompletionOutput(0, "", [1] * length, finish_reason="length") for length in lengths)
        return [RequestOutput("0", None, [1], outputs=[output]) for output in cut]


def test_an_output_that_the_context_would_cut_is_refused_as_its_times_would_be_those_of_another_length():
    load = [LoadRequest([1] * 32, 8)]
    assert offline.run_batch(ShortContext(), load, 0.0).output_tokens == 8
    with pytest.raises(ConfigError, match=r"a request of 32 \+ 9 tokens exceeds the context of 40, prompt and output"):
        offline.run_batch(ShortContext(), [*load, LoadRequest([1] * 32, 9)], 0.0)
    with pytest.raises(EngineDead, match="1 of 2 requests ended before their full length; the context holds 40 tokens"):
        offline.run_batch(ShortContext(), [LoadRequest("x" * 32, 8), LoadRequest("x" * 32, 9)], 0.0)

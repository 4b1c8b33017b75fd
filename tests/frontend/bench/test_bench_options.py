"""Files of a benchmark are checked before it starts: a model may take minutes to load, and a benchmark an hour."""

import pytest
from click.testing import CliRunner

from paged_serve.frontend.bench import latency, offline, serve, server_start, startup, throughput


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

"""`paged-serve bench` with real processes and the demo model: its counts are those of the server."""

import json
import re
import time
import xml.etree.ElementTree
from contextlib import nullcontext
from operator import sub

import pytest
from click.testing import CliRunner

from paged_serve import LLM
from paged_serve.frontend.cli.main import cli

LOAD = ["--num-prompts", "6", "--input-len", "4-40", "--output-len", "2-12", "--seed", "5"]


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["bench", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def computed(server) -> tuple[int, int]:
    """Prompt and output tokens that the server has computed, by its latest metrics."""
    text = server.metrics()
    names = ("prompt_tokens_total", "generation_tokens_total")
    found = [re.search(rf"^paged:{name}{{.*}} (\S+)$", text, re.M) for name in names]
    prompt, generation = (int(float(match[1])) if match else 0 for match in found)
    return prompt, generation


def test_serve_counts_what_the_server_counts(server, tmp_path):
    before = computed(server)
    text = bench("serve", "--base-url", f"{server.url}/v1", *LOAD, "--json", str(tmp_path / "r.json"))
    report = json.loads((tmp_path / "r.json").read_text())
    (result,) = report["result"]
    assert (result["num_answered"], result["errors"]) == (6, {})
    assert result["output_tokens"] == result["asked_tokens"]
    assert f"{result['output_tokens']:,}" in text
    counted = (result["prompt_tokens"] - result["cached_tokens"], result["output_tokens"])
    deadline = time.monotonic() + 60
    while (since := tuple(map(sub, computed(server), before))) != counted:
        assert time.monotonic() < deadline, (counted, since)
        time.sleep(0.05)
    assert report["config"]["model"] == "demo"
    assert {"version", "date", "machine", "bench"} <= report.keys()
    assert report["machine"]["cores"] >= 1


def test_a_sweep_is_a_table_and_a_plot(server, tmp_path):
    plot = str(tmp_path / "p.svg")
    options = ["--request-rate", "40,inf", "--goodput", "ttft:60000", "--max-concurrency", "3", "--plot", plot]
    text = bench("serve", "--base-url", server.url, *LOAD, *options, "--arrivals", "burst", "--num-warmups", "1")
    rows = [line.split() for line in text.splitlines()]
    assert [row[-1] for row in rows if row[:1] in (["40"], ["inf"])] == ["0", "0"]
    xml.etree.ElementTree.parse(plot)


@pytest.mark.parametrize("options", [["--api", "chat"], ["--prompts", "text", "--no-stream"], ["--dataset"]])
def test_texts_conversations_and_files_are_served_too(server, tmp_path, options):
    if options == ["--dataset"]:
        lines = [{"prompt": "Once upon"}, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}] * 3
        (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, lines)))
        options = ["--dataset", str(tmp_path / "d.jsonl")]
    text = bench("serve", "--base-url", server.url, *LOAD, *options)
    assert "FAILED" not in text
    assert re.search(r"requests answered +6 ", text)


def test_refusals_are_reported_and_a_run_without_answers_fails(server):
    arguments = ["serve", "--base-url", server.url, *LOAD, "--vocab-size", "32000"]
    result = CliRunner().invoke(cli, ["bench", *arguments])
    assert result.exit_code == 1
    assert "FAILED 6 of 6, HTTP 400" in result.output


@pytest.fixture(scope="module")
def llm():
    with LLM(num_blocks=64, seed=5) as llm:
        yield llm


@pytest.fixture
def started(llm, monkeypatch):
    """The options of the engines that commands start; all are `llm`."""
    found = []

    def start(model, **options):
        found.append({"model": model, **options})
        return nullcontext(llm)

    monkeypatch.setattr("paged_serve.frontend.bench.offline.LLM", start)
    return found


def test_throughput_runs_the_same_load_offline(started, tmp_path):
    text = bench("throughput", *LOAD, "--num-iters", "2", "--num-blocks", "64", "--json", str(tmp_path / "r.json"))
    report = json.loads((tmp_path / "r.json").read_text())
    first, second = report["result"]["runs"]
    assert f"first load: 6 requests, {first['prompt_tokens']} prompt and {first['output_tokens']} output tokens" in text
    assert first["prompt_tokens"] != second["prompt_tokens"]
    assert report["config"]["cache"]["num_blocks"] == 64
    [options] = started
    assert options.items() >= {"model": "", "num_blocks": 64, "seed": 5}.items()


def test_latency_is_measured_batch_by_batch(started):
    options = ["--batch-size", "2", "--output-len", "4", "--num-iters", "3", "--num-iters-warmup", "1"]
    text = bench("latency", *options, "--num-blocks", "64")
    batch, first, later = (list(map(float, row.replace(",", "").split()[-5:])) for row in text.splitlines()[3:6])
    for row in (batch, first, later):
        assert row[1] <= row[2] <= row[3] <= row[4]
    assert batch[4] >= first[1] > 0
    [options] = started
    assert options.items() >= {"model": "", "num_blocks": 64}.items()


def test_startup_is_measured_process_by_process(tmp_path):
    options = ["--num-starts", "1", "--num-blocks", "64", "--no-standby-workers"]
    text = bench("startup", *options, "--json", str(tmp_path / "r.json"))
    result = json.loads((tmp_path / "r.json").read_text())["result"]
    times = {name: values[0] for name, values in result["times_ms"].items()}
    assert times["/live responds"] < times["/ready responds"] < times["first token"]
    assert times["SIGTERM to last exit"] > 0
    assert {f"{name}, RSS" for name in ("supervisor", "frontend 0", "engine-core", "worker 0")} <= result[
        "memory_mb"
    ].keys()
    assert "total, PSS" in text


def test_a_refused_start_is_reported_with_the_servers_message(tmp_path):
    result = CliRunner().invoke(cli, ["bench", "startup", str(tmp_path / "nowhere"), "--num-starts", "1"])
    assert "nowhere" in str(result.exception)

"""The command line as users see it."""

import contextlib
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paged_serve.frontend.bench.command import BENCHES
from paged_serve.frontend.cli.banner import banner
from paged_serve.frontend.cli.main import COMMANDS, cli
from paged_serve.frontend.config import model_folder
from paged_serve.frontend.config.model_folder import find_model_folder
from paged_serve.frontend.progress_bar import LoadingBar
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, ModelConfig, ServerConfig

ROOT = Path(__file__).parents[3]
HEAVY = {"zmq", "torch", "numpy", "starlette", "uvicorn", "tokenizers", "huggingface_hub", "jinja2", "yaml", "asyncio"}
HEAVY.add("importlib.metadata")  # a third of the time of `serve --help`


def paged_serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment}
    command = [sys.executable, "-m", "paged_serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60)


HELP = [[name, "--help"] for name in COMMANDS] + [["bench", name, "--help"] for name in BENCHES]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *HELP])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import json, sys; from paged_serve.frontend.cli.main import cli;"
        "cli.main(sys.argv[1:], prog_name='paged-serve', standalone_mode=False);"
        "print(json.dumps(sorted(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    assert not HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


def test_serve_is_the_default_command():
    direct = CliRunner().invoke(cli, ["serve", "--prot", "1"])
    implied = CliRunner().invoke(cli, ["--prot", "1"])
    assert direct.exit_code == implied.exit_code == 2
    assert direct.output == implied.output
    assert "'--port'" in implied.output


def test_a_misspelt_command_is_not_taken_for_a_model():
    refused = CliRunner().invoke(cli, ["chta"])
    assert refused.exit_code == 2
    assert "Did you mean 'chat'?" in refused.output


@pytest.mark.parametrize(
    ("arguments", "included", "excluded"),
    [
        (["push", "x"], "No such command or model folder 'push'", "unexpected extra"),
        (["serve", "--zebra", "x"], "No such option", "Did you mean"),
        (["serve", "--max-num-sequences", "3"], "--max-num-seqs", "--max-num-batched"),
        (["serve", "--tp", "2x"], "flag --tensor-parallel-size=2x: is not a whole number", "Expected"),
    ],
)
def test_errors_are_reported_in_plain_words(arguments, included, excluded):
    result = CliRunner().invoke(cli, arguments)
    text = result.output + str(result.exception)
    assert included in text
    assert excluded not in text


def test_serve_help_groups_every_option():
    text = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert [line for line in text.splitlines() if line and not line.startswith(" ")][1:] == [
        "Options:",
        "Model:",
        "Memory:",
        "KV events:",
        "KV tiers:",
        "Scheduling:",
        "Speculation:",
        "Devices:",
        "LoRA adapters:",
        "Server:",
        "Stored responses:",
        "Browsers and proxies:",
    ]


def test_config_show_names_origins_and_hides_keys():
    shown = CliRunner().invoke(cli, ["config", "show", "--port", "1"], env={"PAGED_SERVE_API_KEY": "secret"}).output
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert lines["port"] == ["1", "flag", "--port"]
    assert lines["api-key"] == ["***", "environment", "PAGED_SERVE_API_KEY"]
    assert lines["block-size"] == ["16", "default"]
    assert "secret" not in shown


def test_config_show_json_can_be_used_as_a_configuration_file(tmp_path):
    first = CliRunner().invoke(cli, ["config", "show", "--json", "--tp", "2"]).output
    (tmp_path / "c.json").write_text(first)
    second = CliRunner().invoke(cli, ["config", "show", "--json", "--config", str(tmp_path / "c.json")]).output
    assert first == second


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell):
    assert "_PAGED_SERVE_COMPLETE" in CliRunner().invoke(cli, ["completion", shell]).output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["./nowhere", "--port", "0"], "there is no model folder ./nowhere"),
        (
            ["org/nowhere", "--port", "0"],
            "from the Hugging Face hub: it cannot be reached, and org/nowhere is not in the local cache",
        ),
        (["--port", "0", "--chat-template", "no"], "chat_template=no: there is no such file (looked at /"),
        (["--host", "0.0.0.0"], "host 0.0.0.0 is reachable from other machines"),
        (["--port", "x"], "flag --port=x: is not a whole number"),
        (["complete", "--url", "ftp://x", "-p", "hello"], "ftp://x is not an address"),
        (
            ["complete", "--url", "http://127.0.0.1:9", "-p", "a"],
            "no answer from http://127.0.0.1:9: Connection",
        ),
    ],
)
def test_a_refusal_prints_one_line_and_no_traceback(arguments, reason):
    done = paged_serve(*arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("paged-serve: ")
    assert reason in done.stderr.splitlines()[-1]


class TestModelFolder:
    def checkpoint(self, folder: Path, **files: str) -> Path:
        folder.mkdir()
        for name, text in {"config.json": "{}", "model.safetensors": "", **files}.items():
            (folder / name).write_text(text)
        return folder

    def test_a_folder_is_made_absolute(self, tmp_path, monkeypatch):
        self.checkpoint(tmp_path / "model")
        monkeypatch.chdir(tmp_path)
        assert find_model_folder("model") == str(tmp_path / "model")

    def test_no_model_means_the_demo_model(self, tmp_path, monkeypatch):
        folder = self.checkpoint(tmp_path / "demo")
        monkeypatch.setattr(model_folder, "demo_model_folder", lambda: folder)
        assert find_model_folder("") == str(folder)

    @pytest.mark.parametrize(
        ("missing", "extra", "message"),
        [
            ("config.json", {}, "has no config.json"),
            ("model.safetensors", {}, r"has no \*.safetensors; only that format is read"),
            ("model.safetensors", {"model.gguf": ""}, r"has no \*.safetensors \(it has .gguf files\)"),
            ("", {"config.json": "{"}, "is not JSON"),
            ("", {"config.json": "[]"}, "must hold a JSON object"),
        ],
    )
    def test_a_folder_that_is_not_a_checkpoint_is_refused(self, tmp_path, missing, extra, message):
        folder = self.checkpoint(tmp_path / "model", **extra)
        if missing:
            (folder / missing).unlink()
        with pytest.raises(ConfigError, match=message):
            find_model_folder(str(folder))

    def test_a_file_is_not_accepted_as_a_model(self, tmp_path):
        (tmp_path / "model.bin").write_text("")
        with pytest.raises(ConfigError, match="is a file; give the folder"):
            find_model_folder(str(tmp_path / "model.bin"))

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("~no-such-user/model", "there is no model folder ~no-such-user/model"),
            ("m" * 300, "model m+ cannot be read: File name too long"),
            ("m" * 300 + ".gguf", "model m+ cannot be read: File name too long"),
        ],
    )
    def test_a_name_that_cannot_be_looked_up_is_refused(self, model, message):
        with pytest.raises(ConfigError, match=message):
            find_model_folder(model)


class TestBanner:
    CONFIG = Config(model=ModelConfig(model="/models/demo", served_model_names=("demo",)))

    def test_the_banner_is_a_box_and_a_command_to_copy(self):
        text = banner(self.CONFIG, {"device": "cpu"}, "http://127.0.0.1:8000", "/tmp/run", is_demo=True)
        *box, hint = text.splitlines()
        assert len({len(line) for line in box}) == 1
        assert "not a useful assistant" in text
        assert hint.startswith("try: curl http://127.0.0.1:8000/v1/completions ")
        assert "quantization" not in text

    @pytest.mark.parametrize(("tasks", "path"), [("embed, token_embed", "/v1/embeddings"), ("classify", "/classify")])
    def test_the_banner_of_a_pooling_model_names_its_tasks_and_requests_one(self, tasks, path):
        facts = {"tasks": tasks, "chat template": "yes", "tool calls": "none", "reasoning": "none"}
        *box, hint = self.text_of(facts).splitlines()
        assert any(line.startswith("│ tasks ") and tasks in line for line in box)
        assert "chats" not in "".join(box)
        assert hint.startswith(f"try: curl url{path} ")
        assert "chats" in self.text_of(facts | {"tasks": f"generate, {tasks}"})

    @pytest.mark.parametrize(
        ("groups", "shown"),
        [
            ("0 of 1", "640 tokens in 40 blocks of 16 "),
            ("1 of 2", "640 tokens in 40 blocks of 16, states included "),
            ("1 of 1", "640 tokens in 40 blocks of 16, all of them states "),
        ],
    )
    def test_the_banner_says_whether_blocks_hold_states(self, groups, shown):
        facts = {"kv_tokens": "640", "kv_blocks": "40", "block_size": "16", "state_groups": groups}
        assert shown in banner(self.CONFIG, facts, "url", "/tmp/run", is_demo=True)

    def test_the_banner_names_the_quantization_of_the_weights(self):
        text = banner(self.CONFIG, {"quantization": "28 matrices int8"}, "url", "/tmp/run", is_demo=True)
        assert "│ quantization   28 matrices int8 " in text

    @pytest.mark.parametrize("order", ["dot", "tile"])
    def test_the_banner_names_the_kernels_their_order_of_sums_and_their_threads(self, order):
        facts = {"device": "cpu", "dtype": "bfloat16", "kernels": "avx2", "summation": order, "threads": "2"}
        wanted = f"runs on        cpu, bfloat16, 1 rank, avx2 kernels in {order} order on 2 threads "
        assert wanted in self.text_of(facts)
        assert "fix: " not in self.text_of(facts)

    def test_without_kernels_the_banner_shows_the_slowdown_and_its_remedy_in_red(self):
        facts = {
            "device": "cpu",
            "kernels": "torch",
            "threads": "1",
            "slow": "so slow",
            "remedy": "pip install x",
        }
        assert self.text_of(facts).splitlines()[-3:-1] == ["slow: so slow", "fix: pip install x"]
        assert "torch on 1 thread " in self.text_of(facts)
        assert "\033[31mslow: so slow\033[0m\n\033[31mfix: " in self.text_of(facts, colour=True)

    def text_of(self, facts, **options):
        return banner(self.CONFIG, facts, "url", "/tmp/run", is_demo=False, **options)

    def test_the_command_to_copy_fits_a_unix_socket_and_a_key(self):
        server = ServerConfig(uds="/tmp/my socket", api_keys=("secret",))
        config = Config(model=self.CONFIG.model, server=server)
        text = banner(config, {}, "unix:/tmp/my socket", "/tmp/run", is_demo=False)
        assert "--unix-socket '/tmp/my socket' http://localhost/v1/completions" in text
        assert '-H "Authorization: Bearer $PAGED_SERVE_API_KEY"' in text
        assert "secret" not in text


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_command_with_closed_streams_ends_as_with_open_ones(closed):
    command = f"exec {sys.executable} -m paged_serve serve /none --port 0 {closed}"
    assert subprocess.run(command, shell=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60).returncode == 2


def test_a_command_whose_output_finds_no_space_ends_with_one_line():
    command = f"exec {sys.executable} -m paged_serve --version > /dev/full"
    ended = subprocess.run(command, shell=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert ended.returncode == 1
    assert ended.stderr == b"paged-serve: what it prints cannot be written: No space left on device\n"


def test_loading_prints_few_lines_without_a_terminal(capsys, monkeypatch):
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    bar = LoadingBar(sys.stderr)
    for done in range(100):
        clock += 0.125
        bar("loading weights", done, 100)
    bar.clear()
    assert capsys.readouterr().err.splitlines() == [f"loading weights {percent}%" for percent in (23, 47, 71, 95)]


def test_slow_loading_prints_the_begin_and_end_of_each_phase(capsys, monkeypatch):
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    bar = LoadingBar(sys.stderr)
    bar("short", 1, 2)
    clock = 3.5
    for text, done in (("loading weights", 1), ("loading weights", 2), ("loading weights", 4), ("warming up", 1)):
        bar(text, done, 4)
    clock = 7.0
    bar("warming up", 2, 4)
    bar("compiling", 0, 4)
    expected = ["loading weights 25%", "loading weights 100%", "warming up 50%", "compiling 0%"]
    assert capsys.readouterr().err.splitlines() == expected


def test_loading_continues_when_the_reader_of_its_progress_is_gone(monkeypatch):
    monkeypatch.setattr("time.monotonic", itertools.count(0, 10).__next__)
    reading, writing = os.pipe()
    os.close(reading)
    stream = open(writing, "w")  # noqa: SIM115
    bar = LoadingBar(stream)
    bar("loading weights", 1, 2)
    bar("loading weights", 2, 2)
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_loading_is_one_line_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    bar = LoadingBar(terminal)
    bar("loading weights", 1, 2)
    bar("loading weights", 2, 2)
    bar.clear()
    assert "\n" not in terminal.getvalue()
    assert "█" * 15 + "░" * 15 + "  50% loading weights" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")

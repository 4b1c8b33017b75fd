"""The files of deploy/ agree with paged-serve: options, routes, metrics, sources, times, system calls."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from paged_serve.frontend.http.exchange.metrics import Metrics
from paged_serve.frontend.http.routes.table import public_routes
from paged_serve.frontend.http.server import app
from paged_serve.protocol.messages.config import ServerConfig
from paged_serve.protocol.messages.engine_core import RequestTimes
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.stats import SchedulerStats

from ..end_to_end.server_process import ServerProcess
from .files import DEPLOY, ROOT, dockerfile, unit

DOCKERFILES = [DEPLOY / "docker" / name for name in ("Dockerfile", "Dockerfile.cuda")]
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
UNIT_FILE = DEPLOY / "systemd/paged-serve.service"
SERVICE = unit(UNIT_FILE)["Service"]
RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
SCRAPE = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
SERVER = COMPOSE["services"]["server"]
MARGIN_S = 10  # from the end of a drain to that of the last process


def check_command(*arguments):
    """The real command line takes these arguments of `serve`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PAGED_SERVE_API_KEY": "key"}
    command = [sys.executable, "-m", "paged_serve", "config", "show", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def served_paths():
    server = ServerConfig(public_metrics=True)
    return {*app.PROBES, *(route.path for route in public_routes(server))}


def one(instructions, name):
    [found] = [instruction for instruction in instructions if instruction.name == name]
    return found


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_copies_files_that_exist_and_all_that_the_package_links_to(path):
    copies = [i for i in dockerfile(path) if i.name == "COPY" and "from" not in i.flags]
    sources = {source for copy in copies for source in copy.plain[:-1]}
    assert all((ROOT / source).exists() for source in sources)
    links = {os.readlink(entry).removeprefix("../") for entry in (ROOT / "paged_serve").iterdir() if entry.is_symlink()}
    assert links <= sources
    let_in = path.with_name(path.name + ".dockerignore").read_text().splitlines()
    assert let_in[0] == "*"
    assert {line.removeprefix("!") for line in let_in if line.startswith("!")} == sources


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_unprivileged_with_options_that_serve_has(path):
    instructions = dockerfile(path)
    assert {i.plain[0] for i in instructions if i.name == "FROM"} == {"python:3.12-slim"}
    assert one(instructions, "USER").plain == ["paged-serve"]
    program, command, *options = one(instructions, "ENTRYPOINT").plain
    assert (program, command) == ("paged-serve", "serve")
    check_command(*options)
    port = one(instructions, "EXPOSE").plain[0]
    assert options[options.index("--port") + 1] == port
    url = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", one(instructions, "HEALTHCHECK").plain[-1])
    assert url[1] == port
    assert url[2] in app._OPEN_PROBES, "with an API key every other route requires it"


def test_the_images_differ_only_in_what_cuda_needs():
    cpu, cuda = (re.sub(r"#.*\n", "", path.read_text()).splitlines() for path in DOCKERFILES)
    assert set(cpu) - set(cuda) <= {line for line in cpu if "pip install" in line or line.startswith("ENTRYPOINT")}
    assert all(re.search("CUDA|NVIDIA|cuda", line) for line in set(cuda) - set(cpu))


def test_compose_passes_options_that_serve_has_and_probes_a_route_that_exists():
    assert (DEPLOY / "compose" / SERVER["build"]["context"] / SERVER["build"]["dockerfile"]).samefile(DOCKERFILES[0])
    check_command("--host", "0.0.0.0", *SERVER["command"])
    [path] = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", SERVER["healthcheck"]["test"][-1])
    assert path in app._OPEN_PROBES
    drain_s = float(SERVER["command"][SERVER["command"].index("--drain-timeout") + 1])
    assert float(SERVER["stop_grace_period"].removesuffix("s")) >= drain_s + MARGIN_S
    for service in COMPOSE["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or source == "./models" or (DEPLOY / "compose" / source).is_file()


def test_prometheus_scrapes_an_existing_route_of_an_existing_service():
    [job] = SCRAPE["scrape_configs"]
    assert job["metrics_path"] in served_paths()
    assert "--public-metrics" in SERVER["command"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}]
    secret = Path(job["authorization"]["credentials_file"]).name
    assert COMPOSE["secrets"][secret] == {"environment": "PAGED_SERVE_API_KEY"}
    assert SCRAPE["rule_files"] == ["rules.yaml"]
    assert all(f'job="{job["job_name"]}"' in rule["expr"] for rule in alerts() if "up{" in rule["expr"])


def alerts():
    return [rule for group in RULES["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def series():
    """Series of /metrics after all that can happen has happened: name -> its labels."""
    metrics = Metrics("demo")
    metrics.submitted(1, 1, 1)
    metrics.first_token(0.1)
    metrics.next_token(0.1)
    for status in (400, 429, 503, 504):
        metrics.rejected(status)
    for reason in FinishReason:
        metrics.finished(reason, 2, 1.0, 0.1, RequestTimes(0.1, 0.1, 0.1, 0))
    stats = SchedulerStats(1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 0.1, 1)
    found = {}
    for line in metrics.exposition(stats).decode().splitlines():
        if sample := re.match(r"(paged:\w+)\{(.*)\} ", line):
            found.setdefault(sample[1], []).append(dict(re.findall(r'(\w+)="([^"]*)"', sample[2])))
    return found


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_reads_series_and_labels_that_exist(rule, series):
    names = re.findall(r"\bpaged:\w+", rule["expr"])
    assert names or rule["expr"].startswith("up{")
    assert set(names) <= set(series)
    for name, selector in re.findall(r"\b(paged:\w+)\{([^}]*)\}", rule["expr"]):
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', selector))
        assert any(wanted.items() <= labels.items() for labels in series[name]), f"{name}{wanted} is never printed"
    for by in re.findall(r"by \(([^)]*)\)", rule["expr"]):
        given = {"instance", "job"}.union(*(labels for name in names for labels in series[name]))
        assert set(by.replace(" ", "").split(",")) <= given
    assert rule["labels"]["severity"] in ("critical", "warning")
    for flag in re.findall(r"--[a-z-]+", str(rule["annotations"])):
        assert f"`{flag}`" in (ROOT / "docs/configuration.md").read_text()


def test_the_unit_starts_stops_and_restarts_as_the_server_does():
    program, command, *options = SERVICE["ExecStart"][0].split()
    assert (Path(program).name, command) == ("paged-serve", "serve")
    assert options == ["--config", "/etc/paged-serve/config.toml"]
    check_command("--config", str(DEPLOY / "systemd/config.toml"))
    assert float(SERVICE["TimeoutStopSec"][0]) >= ServerConfig().drain_timeout_s + MARGIN_S
    assert SERVICE["KillMode"] == ["mixed"], "the supervisor ends its children in their order"
    assert SERVICE["RestartPreventExitStatus"] == ["2"], "a refused start"
    assert SERVICE["Type"] == ["exec"], "notify is for a server that calls sd_notify"
    directories = dict(word.split("=", 1) for word in SERVICE["Environment"][0].split())
    assert directories["TMPDIR"] == f"%t/{SERVICE['RuntimeDirectory'][0]}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_and_rates_it_confined(tmp_path):
    here = tmp_path / UNIT_FILE.name
    here.write_text(UNIT_FILE.read_text().replace(SERVICE["ExecStart"][0].split()[0], sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = ["systemd-analyze", "security", "--offline=true", "--threshold=25", here]  # of 100
    confined = subprocess.run(judged, capture_output=True, text=True, check=False)
    assert confined.returncode == 0, confined.stdout


CONFINED = """
import os, sys
from paged_serve.frontend.helpers import confinement
confinement.ALLOWED_CALLS = sys.argv[1].split(",")
confinement.forbid_new_privileges()
assert confinement.forbid_system_calls()
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_a_server_starts_renders_and_stops_within_the_units_system_calls(tmp_path, short_folder):
    calls = ",".join(sorted(allowed_calls()))
    within = [sys.executable, "-c", CONFINED, calls]
    server = ServerProcess(tmp_path, within=within, run_dirs=short_folder)
    try:
        server.wait_ready()
        chat = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of Italy?"}]}
        with server.ask("POST", "/v1/chat/completions", {**chat, "temperature": 0}) as response:
            assert b"Rome" in response.read()
        server.process.terminate()
        assert server.process.wait(40) == 0
    finally:
        server.close()


def allowed_calls():
    """The names that SystemCallFilter= lets through, its groups resolved."""
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True
    )
    groups, group = {}, []
    for line in listed.stdout.splitlines():
        line = re.sub(r"\x1b\[[0-9;]*m", "", line)
        if line.startswith("@"):
            group = groups.setdefault(line.strip(), [])
        elif line.startswith("    ") and not line.strip().startswith("#"):
            group.append(line.strip())

    def resolve(names):
        return {call for name in names for call in (resolve(groups[name]) if name.startswith("@") else [name])}

    return resolve(SERVICE["SystemCallFilter"][0].split())

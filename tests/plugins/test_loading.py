"""A plugin is loaded by name, as the kind that it is, or refused with the reason."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from paged_serve.frontend.config.llm_options import config_of
from paged_serve.frontend.config.options import resolve
from paged_serve.frontend.http.exchange.fingerprint import fingerprint
from paged_serve.frontend.http.server.stat_loggers import StatLoggers
from paged_serve.frontend.parsers.detection import model_formats
from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.config import Config, ModelConfig, ParallelConfig, ServerConfig
from paged_serve.protocol.messages.logits_processors import MAX_ARGUMENTS, LogitsProcessorParams
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.stats import SchedulerStats
from paged_serve.protocol.plugins import PluginKind, load_plugins, plugin_names
from paged_serve.workers.models.catalogue import FAMILIES
from paged_serve.workers.models.families.family import Family
from paged_serve.workers.models.packed_weights.records import key_of
from paged_serve.workers.models.registry import families_with
from paged_serve.workers.process.platform import platform_of
from paged_serve.workers.tier.checksum import checksum
from paged_serve.workers.tier.identity import folder_of

PACKAGE = Path(__file__).parent / "package"
NAMING = [
    Config(model=ModelConfig(plugins=("acme",))),
    Config(model=ModelConfig(platform="acme")),
    Config(server=ServerConfig(tool_call_parser="acme")),
]
STATS = SchedulerStats(1, 0, 8, 8, 3, 5, 7, 0, 0, 0, 0.1, 1)


@pytest.fixture(autouse=True)
def package(monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_serve"]:
        del sys.modules[name]


def test_an_installed_plugin_is_not_imported_unless_it_is_named():
    assert families_with(()) == FAMILIES
    resolve({}, {})
    assert plugin_names(PluginKind.LOGITS_PROCESSOR, ("acme",)) == {"acme"}
    assert "acme_serve" not in sys.modules
    assert [family.name for family in families_with(("acme",))[len(FAMILIES) :]] == ["acme"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            {"plugin": ("acme", "acne")},
            "--plugin acne: no installed package provides it; installed plugins: acme, acme-faulty",
        ),
        ({"platform": "acme-faulty"}, "--platform acme-faulty: no installed package provides it"),
    ],
)
def test_a_name_that_no_package_has_is_refused_before_anything_starts(flags, told):
    with pytest.raises(ConfigError, match=told):
        resolve(flags, {})


def test_llm_takes_one_name_or_several():
    assert config_of("", {"plugin": "acme"}).model.plugins == ("acme",)
    assert config_of("", {"plugin": ["acme", "acme-faulty"]}).model.plugins == ("acme", "acme-faulty")
    with pytest.raises(ConfigError, match="acne"):
        config_of("", {"plugin": "acne"})


def test_what_is_no_plugin_of_its_kind_is_refused():
    with pytest.raises(ConfigError, match=r"--plugin acme-wrong: acme_serve.platform:Simulated is .* must be a Family"):
        load_plugins(PluginKind.FAMILY, ("acme-wrong",), Family)
    with pytest.raises(ConfigError, match=r"--plugin acme-missing: .* cannot be imported: No module named"):
        platform_of(Config(model=ModelConfig(platform="acme-missing")))


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The folder of a copy of the plugins' code, which is found first."""
    package = Path(shutil.copytree(PACKAGE, tmp_path / "package"))
    monkeypatch.syspath_prepend(str(package))
    return package / "acme_serve"


@pytest.mark.parametrize("file", ["family.py", "logits.py", "formats.py"])
def test_an_edited_plugin_changes_the_fingerprint_of_servers_that_name_it(code, file):
    before = [fingerprint(config, "torch") for config in (*NAMING, Config())]
    with (code / file).open("a") as edited:
        edited.write("# edited")
    after = [fingerprint(config, "torch") for config in (*NAMING, Config())]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, False, True]
    assert "acme_serve" not in sys.modules


def test_blocks_of_an_edited_plugin_are_not_found(code, tmp_path):
    found = []
    for text in ("", "# edited"):
        (code / "layers.py").write_text(text)
        found.append([folder_of(tmp_path / "tier", each, tmp_path, [], (), checksum(None)) for each in NAMING])
    assert [one == other for one, other in zip(*found, strict=True)] == [False, False, True]


def test_weights_that_an_edited_plugin_packed_are_not_found(code, tmp_path):
    found = []
    for text in ("", "# edited"):
        (code / "names.py").write_text(text)
        configs = ModelConfig(plugins=("acme",)), ModelConfig(plugins=("acme-faulty",))
        found.append([key_of(tmp_path, config, [], torch.float32, 0, 1) for config in configs])
    assert [one == other for one, other in zip(*found, strict=True)] == [False, True]


def test_two_families_of_one_architecture_are_refused():
    with pytest.raises(ConfigError, match="two families support the architecture LlamaForCausalLM"):
        families_with(("acme-llama",))


def test_a_platform_with_too_few_devices_is_refused():
    config = Config(model=ModelConfig(platform="acme"), parallel=ParallelConfig(tensor_parallel_size=2))
    with pytest.raises(ConfigError, match="needs 2 devices, but platform=acme has 1; use tensor_parallel_size=1"):
        platform_of(config)


def test_parsers_are_loaded_by_their_own_options():
    found = model_formats((), "acme", "acme")
    assert (found.tools.name, found.reasoning.begin) == ("acme", "<<thought>>")
    with pytest.raises(ConfigError, match="it must be auto, none or one of"):
        model_formats((), "acme-faulty")


def test_a_stat_logger_that_raises_gets_no_more_figures(caplog):
    loggers = StatLoggers(("acme", "acme-faulty"), "demo")
    for _ in range(3):
        loggers.check(None)
        loggers.check(STATS)
    assert [record.message for record in caplog.records if record.name == "acme_serve.stats"] == [
        "acme has seen tokens model=demo"
    ]
    assert sum("stat logger ends name=acme-faulty" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("processors", "told"),
    [
        ("acme", "it must be a list of up to 16"),
        ([""], "a name has 1 to 1024 characters"),
        ([7], "has 7, which is not a name"),
        ([LogitsProcessorParams("acme")] * 17, "it must be a list of up to 16"),
    ],
)
def test_a_list_of_processors_that_is_none_is_refused(processors, told):
    with pytest.raises(InvalidRequest, match=told):
        SamplingParams(logits_processors=processors)


@pytest.mark.parametrize(
    "args",
    [
        {"a": None},
        {"a": float("nan")},
        {"a": 2**63},
        {"a": [1]},
        {7: 1},
        {"a": "x" * 1025},
        {str(i): i for i in range(MAX_ARGUMENTS + 1)},
    ],
)
def test_arguments_are_few_booleans_numbers_and_texts(args):
    with pytest.raises(InvalidRequest, match="logits_processors"):
        LogitsProcessorParams("acme", args)

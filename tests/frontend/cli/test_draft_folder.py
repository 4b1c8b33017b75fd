"""--speculative draft:FOLDER names the method and its model; a second model is refused."""

import pytest

from paged_serve import EngineArgs, FlexibleArgumentParser
from paged_serve.frontend.cli.serve import with_local_model
from paged_serve.frontend.config.llm_options import config_of
from paged_serve.frontend.config.options import resolve
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, SpeculationConfig

EXPECTED = SpeculationConfig(method="draft", draft_model="/models/small:1")


def test_every_source_has_the_short_form(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('speculative = "draft:/models/small:1"')
    found = [
        resolve({"speculative": "draft:/models/small:1"}, {}),
        resolve({}, {"PAGED_SERVE_SPECULATIVE": "draft:/models/small:1"}),
        resolve({"config_file": str(file)}, {}),
    ]
    assert [each.config.speculation for each in found] == [EXPECTED] * 3
    origins = [each.origins["speculation.draft_model"] for each in found]
    assert origins == ["flag --speculative", "environment PAGED_SERVE_SPECULATIVE", f"file {file}"]
    (tmp_path / "config.json").touch()
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    options = vars(parser.parse_args(["--speculative", f"draft:{tmp_path}"]))
    assert config_of("", options).speculation == SpeculationConfig(method="draft", draft_model=str(tmp_path))


def test_a_flag_replaces_the_short_form_of_another_source():
    environment = {"PAGED_SERVE_SPECULATIVE": "draft:/models/small"}
    assert resolve({"speculative": "ngram"}, environment).config.speculation == SpeculationConfig(method="ngram")


def test_two_models_and_no_model_are_refused():
    twice = {"speculative": "draft:/a", "draft_model": "/b"}
    with pytest.raises(ConfigError, match="twice: /a by flag --speculative, and /b by flag --draft-model; leave one"):
        resolve(twice, {})
    with pytest.raises(ConfigError, match="twice: /a by speculative, and /b by draft_model; leave one out"):
        config_of("", twice)
    with pytest.raises(ConfigError, match="flag --speculative=draft: names no folder; give draft:FOLDER"):
        resolve({"speculative": "draft:"}, {})
    with pytest.raises(ConfigError, match="must be one of off, ngram, suffix, draft:FOLDER, eagle3:FOLDER, mtp, auto"):
        resolve({"speculative": "draught:/a"}, {})


def test_a_head_has_a_short_form_as_well():
    expected = SpeculationConfig(method="eagle3", draft_model="/models/head:1")
    assert resolve({"speculative": "eagle3:/models/head:1"}, {}).config.speculation == expected
    with pytest.raises(ConfigError, match="flag --speculative=eagle3: names no folder; give eagle3:FOLDER"):
        resolve({"speculative": "eagle3:"}, {})


@pytest.mark.parametrize("method", ["draft", "eagle3"])
def test_a_method_without_its_folder_is_refused_wherever_it_is_set(method, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text(f'speculative = "{method}"')
    sources = [
        ("flag --speculative", lambda: resolve({"speculative": method}, {})),
        ("environment PAGED_SERVE_SPECULATIVE", lambda: resolve({}, {"PAGED_SERVE_SPECULATIVE": method})),
        (f"file {file}: speculative", lambda: resolve({"config_file": str(file)}, {})),
        ("speculative", lambda: config_of("", {"speculative": method})),
    ]
    for origin, configure in sources:
        with pytest.raises(ConfigError) as refused:
            configure()
        remedy = f"give {method}:FOLDER, or the draft model as well"
        assert str(refused.value) == f"{origin}={method} needs a folder; {remedy}"


def test_off_takes_back_the_draft_model_of_a_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('speculative = "draft"\ndraft-model = "/models/small"')
    assert resolve({"config_file": str(file), "speculative": "off"}, {}).config.speculation.method == "off"
    assert resolve({"config_file": str(file)}, {"PAGED_SERVE_SPECULATIVE": "off"}).config.speculation.method == "off"


def test_a_folder_without_its_method_is_refused_with_both_origins():
    with pytest.raises(ConfigError, match=r"flag --draft-model=/a needs .* the method is auto \(default\); give dra"):
        resolve({"draft_model": "/a"}, {})
    with pytest.raises(ConfigError, match=r"method is mtp \(environment PAGED_SERVE_SPECULATIVE\)"):
        resolve({"draft_model": "/a"}, {"PAGED_SERVE_SPECULATIVE": "mtp"})
    with pytest.raises(ConfigError, match=r"^draft_model=/a needs .* the method is ngram \(speculative\)"):
        config_of("", {"speculative": "ngram", "draft_model": "/a"})


def test_a_missing_folder_is_refused_before_a_process_starts():
    speculation = SpeculationConfig(method="draft", draft_model="org/small")
    with pytest.raises(ConfigError, match=r"draft_model=org/small: there is no /.*/org/small/config.json; give a lo"):
        with_local_model(Config(speculation=speculation))
    with pytest.raises(ConfigError, match=r"draft_model=/nowhere: there is no /nowhere/config.json"):
        config_of("", {"speculative": "eagle3:/nowhere"})


def test_a_folder_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "config.json").touch()
    assert config_of("", {"speculative": "draft:~"}).speculation.draft_model == str(tmp_path)


@pytest.mark.parametrize("folder", ["~no-such-user/small", "/models/" + "m" * 300])
def test_a_folder_that_cannot_be_looked_up_is_refused_by_name(folder):
    with pytest.raises(ConfigError, match=f"draft_model={folder}: there is no"):
        config_of("", {"speculative": f"draft:{folder}"})

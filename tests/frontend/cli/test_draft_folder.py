"""--speculative draft:FOLDER names the method and its model; a second model is refused."""

import pytest

from paged_serve import EngineArgs, FlexibleArgumentParser
from paged_serve.frontend.config.llm_options import config_of
from paged_serve.frontend.config.options import resolve
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import SpeculationConfig

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
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    options = vars(parser.parse_args(["--speculative", "draft:/models/small:1"]))
    assert config_of("", options).speculation == EXPECTED


def test_a_flag_replaces_the_short_form_of_another_source():
    environment = {"PAGED_SERVE_SPECULATIVE": "draft:/models/small"}
    assert resolve({"speculative": "ngram"}, environment).config.speculation == SpeculationConfig(method="ngram")


def test_two_models_and_no_model_are_refused():
    twice = {"speculative": "draft:/a", "draft_model": "/b"}
    with pytest.raises(ConfigError, match="twice: /a by flag --speculative, and /b by flag --draft-model; leave one"):
        resolve(twice, {})
    with pytest.raises(ConfigError, match="twice: /a by speculative, and /b by draft_model; leave one out"):
        config_of("", twice)
    with pytest.raises(ConfigError, match="flag --speculative: method=draft: names no folder; give draft:FOLDER"):
        resolve({"speculative": "draft:"}, {})
    with pytest.raises(ConfigError, match="must be one of off, ngram, suffix, draft, eagle3, mtp, auto"):
        resolve({"speculative": "draught:/a"}, {})


def test_a_head_has_a_short_form_as_well():
    expected = SpeculationConfig(method="eagle3", draft_model="/models/head:1")
    assert resolve({"speculative": "eagle3:/models/head:1"}, {}).config.speculation == expected
    with pytest.raises(ConfigError, match="method=eagle3: names no folder; give eagle3:FOLDER"):
        resolve({"speculative": "eagle3:"}, {})

"""Which files the processes of a server must not find changed."""

import json
from pathlib import Path

from paged_serve.frontend.supervision.read_files import files_read_by
from paged_serve.protocol.messages.config import Config, ModelConfig, SpeculationConfig


def write(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def found(config: Config) -> dict[str, bool]:
    """By path: whether there was such a file."""
    return {stamp.path: bool(stamp.version) for stamp in files_read_by(config)}


def test_the_files_of_all_folders_are_found(tmp_path):
    model, tokenizer, draft = (tmp_path / name for name in ("model", "tokenizer", "draft"))
    write(model / "config.json", model / "model-00001-of-00002.safetensors", draft / "model.safetensors")
    write(tokenizer / "tokenizer.json", tokenizer / "special_tokens_map.json")
    write(model / "additional_chat_templates" / "rag.jinja", model / "modeling_own.py")
    config = Config(
        model=ModelConfig(model=str(model), tokenizer=str(tokenizer)),
        speculation=SpeculationConfig(method="draft", draft_model=str(draft)),
    )
    present = {path for path, is_present in found(config).items() if is_present}
    assert present == {str(path) for path in tmp_path.rglob("*") if path.is_file()}


def test_a_file_that_may_be_added_later_is_found_and_notes_are_not(tmp_path):
    write(tmp_path / "config.json", tmp_path / "README.md", tmp_path / "checkpoint-500" / "model.safetensors")
    files = found(Config(model=ModelConfig(model=str(tmp_path))))
    assert files[str(tmp_path / "chat_template.jinja")] is False
    assert not {path for path in files if "README" in path or "checkpoint" in path}


def test_the_layers_of_sentence_transformers_are_found(tmp_path):
    write(tmp_path / "2_Dense" / "config.json", tmp_path / "2_Dense" / "model.safetensors")
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "2_Dense"}]))
    files = found(Config(model=ModelConfig(model=str(tmp_path))))
    assert files[str(tmp_path / "2_Dense" / "model.safetensors")] is True


def test_a_name_that_no_message_can_carry_is_left_out(tmp_path):
    (tmp_path / "\udcff.safetensors").write_bytes(b"")
    assert not {path for path in found(Config(model=ModelConfig(model=str(tmp_path)))) if "\udcff" in path}

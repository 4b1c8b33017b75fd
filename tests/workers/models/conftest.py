"""What the tests of several kinds of models share."""

import json

import pytest
from safetensors.torch import load_file, save_file


@pytest.fixture
def changed(folder, tmp_path):
    """Writes the module's checkpoint with `change(tensors)` applied, and with other fields of config.json."""

    def write(change=lambda tensors: None, **fields):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        config = json.loads((folder / "config.json").read_text()) | fields
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return write

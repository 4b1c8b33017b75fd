"""PEFT folders whose weights nothing reads: a frontend digests them only."""

import json
from pathlib import Path


def make_adapter_folder(folder: Path, weights: bytes = b"weights", **config: object) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, **config}))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(folder)

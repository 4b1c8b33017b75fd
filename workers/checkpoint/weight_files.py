"""The files of weights in a model folder."""

from pathlib import Path

SUFFIXES = (".safetensors", ".gguf")


def weight_files(folder: Path) -> list[Path]:
    """All files of weights that a load may read, sorted by name; without links to files that are gone."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())

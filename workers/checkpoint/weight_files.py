"""The files of weights in a model folder."""

from pathlib import Path

SUFFIXES = (".safetensors", ".gguf")
COPIES = "consolidated"  # begins the names of files with the weights of Mistral's models once more, under other names


def weight_files(folder: Path) -> list[Path]:
    """All files of weights that a load may read, sorted by name; without links to files that are gone."""
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in found if not path.name.startswith(COPIES))


def why_absent(folder: Path) -> str:
    """The weights that `folder` has instead of model.safetensors, and the remedy."""
    others = weight_files(folder)
    if len(others) == 1:
        return f"rename {others[0].name} to model.safetensors if it has the whole model"
    if others:
        return f"it has {others[0].name} and {len(others) - 1} more; download the index too"
    if pickled := sorted(folder.glob("*.bin")):
        return (
            f"weights in {pickled[0].name} are pickled; convert them: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)"
        )
    if any(folder.glob(f"{COPIES}*.safetensors")):
        return f"{COPIES}*.safetensors has other names; only the copy in transformers' format is read"
    return "download the model again"

"""Downloads one model from the Hugging Face hub. Last line on stdout: the folder, or (exit code 1) why not."""

import sys
from pathlib import Path

FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer*"]
NOT_IN_SUBFOLDERS = ["*/*"]  # these hold other formats and older copies
MODULES = ["[0-9]_*/config.json", "[0-9]_*/*.safetensors"]  # of sentence-transformers


def download(model: str) -> str:
    """The local folder of `model`, from the cache when the hub has nothing newer or cannot be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    folder = snapshot_download(model, allow_patterns=FILES, ignore_patterns=NOT_IN_SUBFOLDERS)
    return snapshot_download(model, allow_patterns=MODULES) if (Path(folder) / "modules.json").is_file() else folder


def explain(model: str, error: Exception) -> str:
    """The reason of the failure, in one line."""
    match type(error).__name__:
        case "RepositoryNotFoundError":
            return f"there is no model {model}, or it is private (set HF_TOKEN)"
        case "GatedRepoError":
            return f"{model} requires accepting its licence first: https://huggingface.co/{model}"
        case "LocalEntryNotFoundError" | "OfflineModeIsEnabled" | "ConnectError" | "ConnectTimeout" | "ProxyError":
            return f"it cannot be reached, and {model} is not in the local cache"
        case name:
            return f"{name}: {str(error).splitlines()[0] if str(error) else ''}"


def main() -> int:
    model = sys.argv[1]
    print(f"looking for {model} on the Hugging Face hub", file=sys.stderr, flush=True)
    try:
        print(download(model))
    except Exception as error:  # the main function of this process: its parent gets one line for any error
        print(explain(model, error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

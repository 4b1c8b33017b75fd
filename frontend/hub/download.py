"""Downloads one model from the Hugging Face hub. Last line on stdout: its folder or GGUF file, or (exit code 1) why
not."""

import sys
from functools import partial
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.process.lifeline import arm_lifeline

from .gguf_files import OTHERS, choose, patterns, split_name, tags

FILES = ["*.safetensors", "*.json", "*.jinja", "*.py", "tokenizer*"]
# Other formats and older copies; "consolidated" are the weights of Mistral's models once more, under other names.
NOT_WANTED = ["*/*.safetensors", "*/*.json", "*/*.py", "tokenizer*/*", "consolidated*"]
# What results depend on, of models without code of their own; a repository has some of them.
NEEDED = [
    *("config.json", "generation_config.json", "quantize_config.json", "hf_quant_config.json"),
    "model*.safetensors*",
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("*.jinja", "chat_template.json", "modules.json", "*sentence*.json"),
]
MODULES = ["[0-9]_*/config.json", "[0-9]_*/*.safetensors"]  # of sentence-transformers


def download(model: str, revision: str | None) -> str:
    """The local place of `model`, from the cache when the hub has nothing newer or cannot be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    repository, tag, path = split_name(model)
    if tag or path:
        wanted = patterns(tag, path)
        folder = snapshot_download(repository, revision=revision, allow_patterns=wanted, ignore_patterns=OTHERS)
        try:
            return str(choose(model, Path(folder), tag, path))
        except ConfigError as error:
            raise ConfigError(f"{error}{_instead(repository, revision)}") from None
    folder = _whole_model(model, revision)
    if (Path(folder) / "modules.json").is_file():
        return snapshot_download(model, revision=revision, allow_patterns=MODULES)
    if not any(Path(folder).glob("*.safetensors")) and (instead := _instead(repository, revision)):
        raise ConfigError(f"{model} has no *.safetensors{instead}")
    return folder


def _whole_model(model: str, revision: str | None) -> str:
    """The folder of the files in FILES, or, if the hub cannot be reached, of all in NEEDED."""
    from huggingface_hub import errors, snapshot_download

    download = partial(snapshot_download, model, revision=revision, ignore_patterns=NOT_WANTED)
    try:
        return download(allow_patterns=FILES)
    except getattr(errors, "IncompleteSnapshotError", ()):  # older versions of the library do not look
        return download(allow_patterns=NEEDED, local_files_only=True)


def _instead(repository: str, revision: str | None) -> str:
    """The GGUF models of the repository, as the end of an error message; "" if there is none or the hub is away."""
    from huggingface_hub import list_repo_files
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        found = tags(list_repo_files(repository, revision=revision))
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError):
        return ""
    return f"; it has {', '.join(f'{repository}:{tag}' for tag in found)}" if found else ""


def explain(model: str, revision: str, error: Exception) -> str:
    """The reason of the failure, in one line."""
    match type(error).__name__:
        case "ConfigError":
            return str(error)
        case "RevisionNotFoundError":
            return f"{model} has no revision {revision}"
        case "RepositoryNotFoundError":
            return f"there is no model {model}, or it is private (set HF_TOKEN)"
        case "GatedRepoError":
            return f"{model} requires accepting its licence first: https://huggingface.co/{model}"
        case "LocalEntryNotFoundError" | "OfflineModeIsEnabled" | "ConnectError" | "ConnectTimeout" | "ProxyError":
            status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
            problem = "cannot be reached" if status is None else f"answers {status}"
            asked = f"{revision} of {model}" if revision else model
            return f"it {problem}, and {asked} is not in the local cache"
        case "IncompleteSnapshotError":
            return f"it is not available, and the local cache has only a part of {model}"
        case name:
            return f"{name}: {str(error).splitlines()[0] if str(error) else ''}"


def main() -> int:
    lifeline, model, revision = sys.argv[1:]
    arm_lifeline(int(lifeline))
    print(f"looking for {model} on the Hugging Face hub", file=sys.stderr, flush=True)
    try:
        print(download(model, revision or None))
    except Exception as error:  # the main function of this process: its parent gets one line for any error
        print(explain(model, revision, error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m paged_serve.frontend.gguf.folder FILE [without-tokenizer]`: makes the model folder of a GGUF file.

Last line on stdout: the folder, or (exit code 1) why not. A process of its own, because a vocabulary takes hundreds of
megabytes while it is converted, and the supervisor stays small.

<HF_HOME>/paged-serve/gguf/<name>-<key>/   one key per content: of the header, the file's place and this version
    model.gguf -> the file                 …-00001-of-0000N.gguf for each part of a divided model
    config.json tokenizer.json tokenizer_config.json generation_config.json chat_template.jinja
    modules.json 1_Pooling/config.json   if the file says how vectors are pooled
"""

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from paged_serve import __version__
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.process.lifeline import arm_lifeline

from .fields.config_fields import config_fields
from .model import GgufModel
from .pooling import pooling_files
from .tokenizer_files import text_files

CONVERSION = 7  # raised whenever the files of a folder change
WITHOUT_TOKENIZER = "without-tokenizer"  # another folder has it


def make_folder(path: Path, root: Path, *, has_tokenizer: bool = True) -> Path:
    """The folder of the model in `path`, in `root`; it is written once. Raises ConfigError."""
    model = GgufModel.read(path.absolute())
    files = folder_files(model, has_tokenizer=has_tokenizer)
    paths = [str(file.path) for file in model.files]
    fields = (__version__, CONVERSION, has_tokenizer, paths, [file.digest for file in model.files])
    folder = root / f"{path.stem}-{hashlib.sha256(repr(fields).encode()).hexdigest()[:16]}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(root)
        if not folder.is_dir():
            _write(model, files, folder)
    except OSError as error:
        raise ConfigError(f"{path}: its folder cannot be written: {error}; set HF_HOME to another place") from None
    return folder


def folder_files(model: GgufModel, *, has_tokenizer: bool) -> dict[str, Any]:
    """File name -> its JSON or its text. Raises ConfigError for what is not supported."""
    config, pooling = config_fields(model), pooling_files(model)
    text = text_files(model, config["vocab_size"], has_tokenizer=has_tokenizer)
    return {"config.json": config, **pooling, **text}


def _write(model: GgufModel, files: dict[str, Any], folder: Path) -> None:
    """Write all files, then give the folder its name: another start sees it whole or not at all."""
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        for name, contents in files.items():
            (made / name).parent.mkdir(exist_ok=True)
            text = contents if isinstance(contents, str) else json.dumps(contents, ensure_ascii=False, allow_nan=False)
            (made / name).write_text(text, encoding="utf-8")
        for file in model.files:
            (made / ("model.gguf" if len(model.files) == 1 else file.path.name)).symlink_to(file.path)
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # another start was faster otherwise, with the same files
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    """Remove the folders of files that are gone."""
    for folder in root.iterdir():
        links = list(folder.glob("*.gguf"))
        if links and not any(link.exists() for link in links):
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    from huggingface_hub.constants import HF_HOME

    lifeline, file, *options = sys.argv[1:]
    arm_lifeline(int(lifeline))
    try:
        has_tokenizer = WITHOUT_TOKENIZER not in options
        print(make_folder(Path(file), Path(HF_HOME) / "paged-serve" / "gguf", has_tokenizer=has_tokenizer))
    except Exception as error:  # the main function of this process: its parent gets one line for any error
        named = "" if isinstance(error, ConfigError) else f"{file} cannot be converted: {type(error).__name__}: "
        print(f"{named}{' '.join(str(error).splitlines())}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

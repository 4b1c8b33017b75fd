"""Where a model's chat templates lie, and how its folder names them."""

from collections.abc import Mapping
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

from .template_process import Templates
from .tokenizer import Tokenizer, read_json


def model_template(folder: str, tokenizer: Tokenizer, override: str = "") -> Templates | None:
    """The template of a model folder, or of the file `override`; None when the model has none.

    Raises ConfigError when it cannot be read. It is compiled where it is rendered: a compiler computes constants.
    """
    path = Path(folder)
    if override:
        source: str | Mapping[str, str] | None = _read(Path(override))
    elif (file := path / "chat_template.jinja").is_file():
        more = sorted((path / "additional_chat_templates").glob("*.jinja"))
        source = {"default": _read(file)} | {other.stem: _read(other) for other in more}
    else:
        source = _declared(read_json(path / "tokenizer_config.json").get("chat_template"))
    if source is None:
        return None
    return Templates({"default": source} if isinstance(source, str) else dict(source), tokenizer.special_tokens)


def _declared(value: object) -> str | dict[str, str] | None:
    """`chat_template` of tokenizer_config.json: a template, or a list of named ones."""
    if isinstance(value, list):
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    return value if isinstance(value, str) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat template {path} cannot be read: {error}") from None

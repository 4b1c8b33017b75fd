"""Reads chat templates and recommended sampling parameters from a model folder."""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..text.tokenizer import Tokenizer, read_json
from .template_process import Templates

KEPT_TEMPLATE = "chat_template.jinja"
OF_PROCESSOR = "chat_template.json"  # in models that also read images, instead of tokenizer_config.json


def model_template(folder: str, tokenizer: Tokenizer, override: str = "") -> Templates | None:
    """The template of a model folder, or of the file `override`; None when the model has none.

    Raises ConfigError when it cannot be read. A helper process compiles it: the compiler evaluates constants.
    """
    path = Path(folder)
    if override:
        source: str | Mapping[str, str] | None = _read(Path(override))
    elif (file := path / "chat_template.jinja").is_file():
        more = sorted((path / "additional_chat_templates").glob("*.jinja"))
        source = {"default": _read(file)} | {other.stem: _read(other) for other in more}
    else:
        source = _declared(path / "tokenizer_config.json") or _declared(path / OF_PROCESSOR)
    if source is None:
        return None
    return Templates({"default": source} if isinstance(source, str) else dict(source), tokenizer.special_tokens)


def kept_template(override: str, run_dir: str) -> str:
    """The copy of the file `override` in the run directory; `override` itself without one of the two.

    The first frontend of a server makes it. Those that replace it, perhaps days later, read the same template, whatever
    has become of the file. Raises ConfigError.
    """
    if not override or not run_dir:
        return override
    kept = Path(run_dir, KEPT_TEMPLATE)
    if not kept.exists():
        text = _read(Path(override))
        with tempfile.NamedTemporaryFile("w", dir=run_dir, encoding="utf-8") as file:
            file.write(text)
            file.flush()
            with contextlib.suppress(FileExistsError):  # another frontend was first
                os.link(file.name, kept)
    return str(kept)


def _declared(path: Path) -> str | dict[str, str] | None:
    """`chat_template` of the file: a template, or a list of named ones."""
    value = read_json(path).get("chat_template")
    if not isinstance(value, list):
        return value if isinstance(value, str) else None
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    except (KeyError, TypeError):
        raise ConfigError(
            f"{path}: chat_template must be a string or a list of objects with `name` and `template`"
        ) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # the latter of a path with a null byte, and of a file that is no text
        raise ConfigError(f"chat template {path} cannot be read: {error}") from None


FILE = "generation_config.json"
_NAMES = {  # in the file: in SamplingParams
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}


def sampling_defaults(model: ModelConfig) -> Mapping[str, Any]:
    """Defaults of SamplingParams for fields that a request omits: of the model's file, or in place of them given ones.

    Raises ConfigError for a value out of bounds. As in vLLM, `do_sample` is ignored: without a temperature the API's
    default applies.
    """
    path = Path(model.model) / FILE
    instead = ". --generation-config none serves without the file's values"
    values = _checked(read_json(path), str(path), instead) if model.generation_config == "auto" else {}
    origin = "override_generation_config"
    given = _given(model.override_generation_config, origin)
    if unknown := given.keys() - _NAMES.keys():
        raise ConfigError(f"{origin}: there is no {min(unknown)}; known are {', '.join(_NAMES)}")
    return {**values, **_checked(given, origin)}


def _given(text: str, origin: str) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{origin}={text:.200}: is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(f'{origin}={text:.200}: must be a JSON object, such as {{"temperature": 0.6}}')
    return given


def _checked(recommended: Mapping[str, Any], origin: str, instead: str = "") -> dict[str, Any]:
    values = {ours: recommended[theirs] for theirs, ours in _NAMES.items() if recommended.get(theirs) is not None}
    try:
        SamplingParams(**values)
    except InvalidRequest as error:
        raise ConfigError(f"{origin}: {error.message}{instead}") from None
    return values

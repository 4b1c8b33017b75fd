"""The files that results depend on, as they are before the first process reads them.

Not among them: the keys of clients, which are meant to change; LoRA adapters, whose contents have digests; and
--chat-template, of which the first frontend keeps a copy.
"""

from collections.abc import Iterator
from pathlib import Path

from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.control import FileStamp
from paged_serve.protocol.messages.message import has_half_pair
from paged_serve.protocol.process.file_stamps import stamp_of

# Files that a model folder may have: if one is added later, it is read, too.
OF_TOKENIZER = (
    *("config.json", "generation_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
OF_MODEL = (
    *OF_TOKENIZER,
    *("model.safetensors.index.json", "quantize_config.json", "hf_quant_config.json"),
    *("chat_template.jinja", "chat_template.json", "modules.json", "config_sentence_transformers.json"),
)
PATTERNS = ("*.safetensors", "*.gguf", "*.py", "sentence_*_config.json", "additional_chat_templates/*.jinja")
OF_MODULES = ("*/config.json", "*/*.safetensors")  # of sentence-transformers, if the folder has modules.json


def files_read_by(config: Config) -> tuple[FileStamp, ...]:
    """The stamps of the files of the model, its tokenizer and its draft model."""
    return tuple(stamp_of(path) for path in sorted(set(_paths(config))) if not has_half_pair(str(path)))


def _paths(config: Config) -> Iterator[Path]:
    model = config.model
    for folder in (model.model, config.speculation.draft_model):
        if folder:
            yield from _of_model(Path(folder))
    if model.tokenizer:
        yield from (Path(model.tokenizer, name) for name in OF_TOKENIZER)


def _of_model(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in OF_MODEL)
    patterns = PATTERNS + (OF_MODULES if (folder / "modules.json").is_file() else ())
    for pattern in patterns:
        yield from folder.glob(pattern)

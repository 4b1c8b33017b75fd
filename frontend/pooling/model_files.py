"""Reads a model's pooling files: the prompts and token limit of sentence-transformers, and the names of classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.config import ModelConfig

from ..text.tokenizer import read_json

PROMPTS = "config_sentence_transformers.json"
# The release that wrote the model determines which of them exists.
LIMITS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Cohere's input types, and the names that models use for the corresponding prompt, the most likely first.
INPUT_TYPES = {
    "search_query": ("search_query", "query", "web_search_query"),
    "search_document": ("search_document", "document", "passage", "corpus"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}


@dataclass(frozen=True, slots=True)
class PoolingFiles:
    """`max_tokens`: 0 if the files set no limit, or if the server's limit replaces it."""

    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; a prompt is put before a text
    default_prompt: str = ""  # used when the request names none
    max_tokens: int = 0
    labels: Mapping[int, str] = field(default_factory=dict)
    dimensions: tuple[int, ...] = ()  # sizes that the embeddings were trained to be cut to; empty: not stated
    has_token_types: bool = False  # the tokens of a pair's second text have another type

    @classmethod
    def load(cls, model: ModelConfig) -> "PoolingFiles":
        """Read the files of `model`. Raises ConfigError for invalid files."""
        path = Path(model.model)
        declared, config = read_json(path / PROMPTS), read_json(path / "config.json")
        prompts = _texts(declared.get("prompts") or {}, path / PROMPTS, "prompts")
        name = declared.get("default_prompt_name")
        if name is not None and name not in prompts:
            raise ConfigError(
                f"{path / PROMPTS}: default_prompt_name is {name!r:.80}; prompts has {', '.join(prompts) or 'none'}"
            )
        labels = _texts(config.get("id2label") or {}, path / "config.json", "id2label")
        types, dimensions = config.get("type_vocab_size"), config.get("matryoshka_dimensions")
        return cls(
            prompts,
            "" if name is None else prompts[name],
            0 if model.max_model_len is not None else _max_tokens(path),
            {int(number): label for number, label in labels.items() if number.isdecimal()},
            tuple(each for each in dimensions if isinstance(each, int)) if isinstance(dimensions, list) else (),
            isinstance(types, int) and types > 1,
        )

    def prompt(self, name: str | None) -> str:
        """The prompt to put before a text; "" selects none. Raises InvalidRequest for an unknown name."""
        if name is None:
            return self.default_prompt
        if name and name not in self.prompts:
            known = ", ".join(sorted(self.prompts))
            raise InvalidRequest(f"prompt_name is {name[:80]!r}; this model has {known or 'no prompts'}", "prompt_name")
        return self.prompts[name] if name else ""

    def prompt_for(self, input_type: str | None) -> str:
        """The prompt for Cohere's `input_type`; the default prompt if the model has none for it."""
        names = INPUT_TYPES.get(input_type or "", ())
        return next((self.prompts[name] for name in names if name in self.prompts), self.default_prompt)

    def label(self, number: int) -> str:
        """The name of class `number`; a class without a name gets the one that transformers would use."""
        return self.labels.get(number, f"LABEL_{number}")

    def check_dimensions(self, dimensions: int | None, size: int, field: str = "dimensions") -> None:
        """`size`: the numbers of a whole embedding. Raises InvalidRequest."""
        if dimensions is None:
            return
        if dimensions > size:
            raise InvalidRequest(f"{field} is {dimensions}; this model's embeddings have {size}", field)
        if self.dimensions and dimensions not in self.dimensions:
            known = ", ".join(map(str, self.dimensions))
            raise InvalidRequest(f"{field} is {dimensions}; this model supports {known} (matryoshka_dimensions)", field)


def _texts(declared: object, path: Path, name: str) -> dict[str, str]:
    if not isinstance(declared, dict) or not all(isinstance(text, str) for text in declared.values()):
        raise ConfigError(f"{path}: {name} must be an object whose values are strings")
    return {str(key): text for key, text in declared.items()}


def _max_tokens(path: Path) -> int:
    for name in LIMITS:
        limit: Any = read_json(path / name).get("max_seq_length")
        if limit is None:
            continue
        if not isinstance(limit, int) or limit < 1:
            raise ConfigError(f"{path / name}: max_seq_length is {limit!r:.80}; it must be a number of tokens")
        return limit
    return 0

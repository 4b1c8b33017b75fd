"""The vectors that a model can return, according to its config.json and sentence-transformers files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file
from paged_serve.protocol.messages.pooling_params import Task

from ..geometry.geometry import Head

Kind = Literal["last", "mean", "cls"]  # pools the hidden state of the last token, of all tokens, or of the first
LabelPooling = Literal["last", "mean", "cls", "late"]  # late: each token has scores, and they are averaged
Activation = Literal["none", "sigmoid", "softmax"]  # of scores

MODES: dict[str, Kind] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
}


class Module(msgspec.Struct, frozen=True):
    """An entry of modules.json."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        return self.type.rpartition(".")[2]


class LabelFields(msgspec.Struct, frozen=True):
    """The fields of config.json about labels, and the embedding lengths that the model was trained with."""

    id2label: dict[str, Any] | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    is_matryoshka: bool | None = None
    matryoshka_dimensions: list[int] | None = None
    sbert_ce_default_activation_function: str | None = None
    classifier_pooling: Literal["last", "mean", "cls", "bos", "late"] | None = None  # ModernBERT's, EuroBERT's
    clf_pooling: Literal["mean", "bos", "late"] | None = None  # the same in EuroBERT's published files
    sentence_transformers: dict[str, Any] | None = None

    @property
    def count(self) -> int:
        """The number of labels; as in transformers, 2 by default."""
        return len(self.id2label) if self.id2label else 2 if self.num_labels is None else self.num_labels

    def pooling(self, default: LabelPooling) -> LabelPooling:
        """How a text's scores are pooled; `default`: the family's."""
        found = self.classifier_pooling or self.clf_pooling or default
        return "cls" if found == "bos" else found

    @property
    def activation(self) -> Activation:
        """The activation in a cross-encoder's config.json, or otherwise that of transformers' pipeline."""
        named = (self.sentence_transformers or {}).get("activation_fn") or self.sbert_ce_default_activation_function
        match str(named or "").rpartition(".")[2]:
            case "Identity":
                return "none"
            case "Sigmoid":
                return "sigmoid"
            case "Softmax":
                return "softmax"
            case "":
                pass
            case name:
                raise ConfigError(f"config.json: activation {name} of scores is not supported; use Identity or Sigmoid")
        if self.problem_type == "regression":
            return "none"
        return "sigmoid" if self.problem_type == "multi_label_classification" or self.count == 1 else "softmax"


class _Lengths(msgspec.Struct, frozen=True):
    """The fields of sentence_bert_config.json."""

    max_seq_length: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """How one model computes vectors."""

    tasks: tuple[Task, ...]
    kind: Kind = "last"
    normalizes: bool = True  # embeddings, unless the request opts out
    dense: tuple[str, ...] = ()  # the folders of dense layers after pooling
    num_labels: int = 0
    activation: Activation = "none"  # of scores, unless the request opts out
    matryoshka_dimensions: tuple[int, ...] = ()  # empty: not known
    averages_scores: bool = False  # a text's scores are the mean of its tokens' scores

    @property
    def is_late_interaction(self) -> bool:
        """Whether the model is for vectors of tokens alone, which dense layers make of the hidden states."""
        return "token_embed" in self.tasks and "embed" not in self.tasks


def read_spec(
    folder: Path, head: Head, own_kind: Kind, wanted: str, hidden_size: int, label_pooling: LabelPooling | None = None
) -> PoolingSpec:
    """The spec of the model in `folder`. `own_kind`: the architecture's; `wanted`: the option, "auto" or a kind.

    `label_pooling`: how the family pools scores; None: as `own_kind`.

    Raises ConfigError that names the file and its unsupported entry.
    """
    fields = read_json_file(folder / "config.json", LabelFields)
    if head not in ("tokens", "projection", "none"):
        return _scores(fields, head, label_pooling or own_kind, wanted)
    modules = _modules(folder)
    kind, dense, pools = own_kind, list[str](), False
    for module in modules:
        match module.name:
            case "Transformer" | "Normalize":
                pass
            case "Pooling":
                pools = True
                kind = _kind(folder / module.path / "config.json") if wanted == "auto" else kind
            case "Dense":
                dense.append(module.path)
            case name:
                raise ConfigError(f"{folder / 'modules.json'}: a module {name} is not supported here")
    is_late = head == "projection" or (bool(dense) and not pools)
    if wanted != "auto":
        kind = _wanted(wanted, is_late)
    tasks: tuple[Task, ...] = ("token_embed",) if is_late else ("embed",) if dense else ("embed", "token_embed")
    dimensions = tuple(fields.matryoshka_dimensions or ((hidden_size,) if fields.is_matryoshka is False else ()))
    normalizes = is_late or not modules or any(module.name == "Normalize" for module in modules)
    generates: tuple[Task, ...] = ("generate",) if head == "tokens" else ()
    return PoolingSpec((*generates, *tasks), kind, normalizes, tuple(dense), matryoshka_dimensions=dimensions)


def _wanted(pooling: str, is_late: bool) -> Kind:
    """The kind that the option asks for."""
    if is_late:
        raise ConfigError(
            f"pooling={pooling} is for one vector per text; this late-interaction model has one for each token: "
            "leave --pooling out"
        )
    kind: Kind = msgspec.convert(pooling, Kind)
    return kind


def _scores(fields: LabelFields, head: Head, own: LabelPooling, wanted: str) -> PoolingSpec:
    """The spec of a model that scores labels, or each token. A process reward model has two labels per step."""
    pooling = fields.pooling(own)
    if wanted not in ("auto", pooling):
        raise ConfigError(f"pooling={wanted} is for embeddings; this model's scores have the pooling {pooling}")
    is_late, kind = pooling == "late", "mean" if pooling == "late" else pooling
    match head:
        case "rewards":
            return PoolingSpec(("token_classify",), kind, False, (), 1, "none")
        case "process_rewards":
            return PoolingSpec(("token_classify",), kind, False, (), 2, "softmax")
        case "token_labels":
            return PoolingSpec(("token_classify",), kind, False, (), fields.count, fields.activation)
        case _:
            return PoolingSpec(("classify",), kind, False, (), fields.count, fields.activation, (), is_late)


def max_seq_length(folder: Path) -> int | None:
    """The number of tokens to which sentence-transformers truncates a text; None if it is not configured."""
    path = folder / "sentence_bert_config.json"
    return read_json_file(path, _Lengths).max_seq_length if path.is_file() else None


def _modules(folder: Path) -> Sequence[Module]:
    path = folder / "modules.json"
    modules = read_json_file(path, list[Module]) if path.is_file() else []
    for module in modules:
        if Path(module.path).name != module.path:
            raise ConfigError(f"{path} names {module.path!r}, which is outside the folder")
    return modules


def _kind(path: Path) -> Kind:
    """The kind of pooling that the file describes: exactly one of three."""
    fields = read_json_file(path, dict[str, Any])
    if fields.get("include_prompt") is False:
        raise ConfigError(
            f"{path}: include_prompt=false is not supported: tokens of a prompt are pooled with those of the text; "
            "--pooling mean, last or cls accepts that"
        )
    if (mode := fields.get("pooling_mode")) is not None:
        chosen = [str(each) for each in (mode if isinstance(mode, list) else [mode])]
    else:
        chosen = [name for name, is_on in fields.items() if name.startswith("pooling_mode_") and is_on is True]
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise ConfigError(
            f"{path}: pooling by {' and '.join(chosen) or 'nothing'} is not supported; one of "
            f"{', '.join(MODES)} is, and --pooling last, mean or cls replaces it"
        )
    return MODES[chosen[0]]

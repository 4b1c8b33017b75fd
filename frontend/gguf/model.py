"""A GGUF model: its files, and its metadata under the names of its architecture."""

from dataclasses import dataclass, field
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import GgufFile, GgufTensor, check_parts, floats_of, part_paths, read_gguf
from paged_serve.protocol.gguf.metadata import Metadata

MAX_SIZE = 1 << 30  # more than any size in a model
MAX_LAYERS = 1 << 12


@dataclass(frozen=True, slots=True)
class GgufModel:
    """All files of a model; the first has the metadata."""

    files: list[GgufFile]
    architecture: str
    used_names: set[str] = field(default_factory=set)  # names of keys that were read so far

    @classmethod
    def read(cls, path: Path) -> "GgufModel":
        """Raises ConfigError for files that cannot be a language model's."""
        files = [read_gguf(part) for part in part_paths(path)]
        check_parts(files)
        metadata = files[0].metadata
        kind = metadata.text("general.type", "model")
        if kind != "model":
            raise metadata.refused(f"its general.type is {kind!r}, not 'model'")
        return cls(files, metadata.text("general.architecture"))

    @property
    def metadata(self) -> Metadata:
        return self.files[0].metadata

    def tensor(self, name: str) -> GgufTensor | None:
        return next((file.tensors[name] for file in self.files if name in file.tensors), None)

    def floats(self, name: str) -> list[float] | None:
        """The numbers of a small tensor; None if there is none of that name."""
        file = next((file for file in self.files if name in file.tensors), None)
        return None if file is None else floats_of(file, file.tensors[name])

    def key(self, name: str) -> str:
        """The whole key of an architecture's `name`, which counts as read."""
        self.used_names.add(name)
        return f"{self.architecture}.{name}"

    def whole(self, name: str, default: int | None = None) -> int:
        """`name` is a key without the architecture's, as in the other getters; a size, so it is bounded."""
        value = self.metadata.whole(self.key(name), default)
        if not 0 <= value <= MAX_SIZE:
            raise self.refused(f"{self.architecture}.{name}={value} must be between 0 and {MAX_SIZE}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        return self.metadata.number(self.key(name), default)

    def truth(self, name: str, default: bool | None = None) -> bool:
        return self.metadata.truth(self.key(name), default)

    def text(self, name: str, default: str | None = None) -> str:
        return self.metadata.text(self.key(name), default)

    def numbers(self, name: str, default: list[float] | None = None) -> list[float]:
        key = self.key(name)
        return default if default is not None and key not in self.metadata else self.metadata.numbers(key)

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.metadata

    def kv_heads(self) -> list[int]:
        """Of each layer; 0: it has no attention. Raises ConfigError."""
        return self.heads_of_layers("attention.head_count_kv")

    def heads_of_layers(self, name: str = "attention.head_count") -> list[int]:
        """Of each layer, from a list or the number of all. Raises ConfigError."""
        key, layers = self.key(name), self.num_layers()
        if isinstance(self.metadata.values.get(key), list):
            found = [int(each) for each in self.metadata.numbers(key)]
        else:
            found = [self.whole(name)] * layers
        if len(found) < layers or not 0 <= min(found) <= max(found) <= MAX_SIZE:
            raise self.refused(f"{key}={found[:20]} must have a number of heads for each of {layers} layers")
        return found[:layers]

    def num_layers(self) -> int:
        """The decoder's layers, without those that only predict further tokens. Raises ConfigError."""
        count, further = self.whole("block_count"), self.whole("nextn_predict_layers", 0)
        if not further < count <= MAX_LAYERS:
            raise self.refused(f"block_count={count} must be above nextn_predict_layers={further}, up to {MAX_LAYERS}")
        return count - further

    def refused(self, problem: str) -> ConfigError:
        return self.metadata.refused(problem)

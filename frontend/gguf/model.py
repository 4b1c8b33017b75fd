"""A GGUF model: its files, and its metadata under the names of its architecture."""

from dataclasses import dataclass
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import GgufFile, GgufTensor, check_parts, floats_of, part_paths, read_gguf
from paged_serve.protocol.gguf.metadata import Metadata

MAX_SIZE = 1 << 30  # more than any size in a model


@dataclass(frozen=True, slots=True)
class GgufModel:
    """All files of a model; the first has the metadata."""

    files: list[GgufFile]
    architecture: str

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

    def whole(self, key: str, default: int | None = None) -> int:
        """`key` without the architecture's name, as in the other getters; a size, so it is bounded."""
        value = self.metadata.whole(f"{self.architecture}.{key}", default)
        if not 0 <= value <= MAX_SIZE:
            raise self.refused(f"{self.architecture}.{key}={value} must be between 0 and {MAX_SIZE}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return self.metadata.number(f"{self.architecture}.{key}", default)

    def text(self, key: str, default: str | None = None) -> str:
        return self.metadata.text(f"{self.architecture}.{key}", default)

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.metadata

    def refused(self, problem: str) -> ConfigError:
        return self.metadata.refused(problem)

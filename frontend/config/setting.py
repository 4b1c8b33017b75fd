"""One setting of the configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """`flags[0]` gives all its names: --max-num-seqs, PAGED_SERVE_MAX_NUM_SEQS, `max-num-seqs = 64`."""

    group: str
    key: str  # layer.field of Config
    flags: tuple[str, ...]
    help: str
    metavar: str = ""  # "" means: the type's choices
    extra_environment: str = ""  # the name that another server uses
    off_flags: tuple[str, ...] = ()  # further flags that turn a switch off, besides --no-…
    is_list: bool = False  # entries have no commas, so `a,b` and `["a", "b"]` are two entries
    expected: str = ""  # for the error message, where the type alone is unclear

    @property
    def name(self) -> str:
        return self.flags[0].removeprefix("--")

    @property
    def environment(self) -> str:
        return "PAGED_SERVE_" + self.name.replace("-", "_").upper()


def as_given(name: str, origin: str) -> str:
    """How an error message names a setting: by its flag, variable or argument, or by its key in a file."""
    return f"{origin}: {name}" if origin.startswith("file ") else origin

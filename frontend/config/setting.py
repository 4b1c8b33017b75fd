"""One setting of the configuration."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Setting:
    """`flags[0]` gives all its names: --max-num-seqs, PAGED_SERVE_MAX_NUM_SEQS, `max-num-seqs = 64`."""

    key: str  # layer.field of Config
    help: str
    metavar: str = ""  # "" means: the type's choices
    flags: tuple[str, ...] = ()  # (): the field's name as a flag
    group: str = ""  # heading in the help, set by `in_group`
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


def in_group(group: str, *settings: Setting) -> tuple[Setting, ...]:
    """The settings under the heading `group`, each with its flags."""
    return tuple(replace(each, group=group, flags=each.flags or (_flag_of(each.key),)) for each in settings)


def _flag_of(key: str) -> str:
    return "--" + key.partition(".")[2].replace("_", "-")


def as_given(name: str, origin: str) -> str:
    """How an error message names a setting: by its flag, variable or argument, or by its key in a file."""
    return f"{origin}: {name}" if origin.startswith("file ") else origin

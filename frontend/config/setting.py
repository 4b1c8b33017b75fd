"""One value of the configuration that people may set."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """`flags[0]` names it everywhere: --max-num-seqs, PAGED_SERVE_MAX_NUM_SEQS, `max-num-seqs = 64`."""

    group: str
    key: str  # layer.field of Config
    flags: tuple[str, ...]
    help: str
    metavar: str = ""  # "" means: the type's choices
    extra_environment: str = ""  # a name that other servers' users have set already
    off_flags: tuple[str, ...] = ()  # of a switch, beside --no-…
    is_list: bool = False  # of words without commas: `a,b` and `["a", "b"]` are two of them, too
    expected: str = ""  # what a value must be, where its type does not say it in words

    @property
    def name(self) -> str:
        return self.flags[0].removeprefix("--")

    @property
    def environment(self) -> str:
        return "PAGED_SERVE_" + self.name.replace("-", "_").upper()

"""The keyword arguments of LLM as command-line flags of another program, for programs written for vLLM.

parser = FlexibleArgumentParser()
EngineArgs.add_cli_args(parser)
llm = LLM(**vars(parser.parse_args()))
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from paged_serve.protocol.errors import ConfigError

from .draft_folder import METHOD, has_draft_folder
from .options import checked, type_of
from .setting import Setting
from .settings import SETTINGS
from .vllm.options import NO_EFFECT

_SETTINGS = {
    setting.name.replace("-", "_"): setting
    for setting in SETTINGS
    if setting.group != "Server" or setting.key == "server.max_logprobs"
}
_FIELDS = [(name, Any, dataclasses.field(default=None)) for name in (*_SETTINGS, *NO_EFFECT)]


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An ArgumentParser that accepts --max_model_len for --max-model-len."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        return super().parse_known_args([_dashed(word) for word in (sys.argv[1:] if args is None else args)], namespace)


class _CommandLine:
    """The methods of EngineArgs."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each field. A flag that is not given is None, for which LLM takes its default."""
        group = parser.add_argument_group("engine")
        for name, setting in _SETTINGS.items():
            flags = [flag for flag in setting.flags if flag.startswith("--")]
            text = setting.help.replace("%", "%%")
            if type_of(setting.key) is bool:
                group.add_argument(*flags, dest=name, action=argparse.BooleanOptionalAction, help=text)
            else:
                group.add_argument(
                    *flags, dest=name, type=_reader(setting), metavar=setting.metavar or "VALUE", help=text
                )
        for name, values in NO_EFFECT.items():
            flag, text = f"--{name.replace('_', '-')}", "of vLLM; accepted only with values that have no effect"
            if any(isinstance(value, bool) for value in values):
                group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
            elif isinstance(values[0], str | int):
                group.add_argument(flag, type=type(values[0]), metavar="VALUE", help=text)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Any:
        """EngineArgs from parsed flags; other names in `args` are ignored."""
        return cls(**{name: getattr(args, name, None) for name, *_ in _FIELDS})


EngineArgs = dataclasses.make_dataclass(
    "EngineArgs", _FIELDS, bases=(_CommandLine,), namespace={"__doc__": "LLM's keywords: LLM(**asdict(args))."}
)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _reader(setting: Setting) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if setting.key == METHOD and has_draft_folder(text):
            return text  # LLM divides it
        try:
            return checked(setting.key, text, setting.flags[0])
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read

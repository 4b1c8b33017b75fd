"""Messages to a prompt, by the model's own Jinja template. Templates come from the operator, never from a request."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paged_serve.protocol.errors import ConfigError, InvalidRequest

from .final_message import cut_at_mark, with_mark

_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Refused(jinja2.TemplateError):
    """The template itself said no, by raise_exception."""


class _GenerationBlock(Extension):
    """{% generation %} … {% endgeneration %} marks assistant text for training; for serving it is just its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """One or several named templates ("default", "tool_use"). Raises ConfigError when one does not compile.

    `variables` are what every rendering sees beside the messages: bos_token, eos_token and so on.
    """

    def __init__(self, source: str | Mapping[str, str], variables: Mapping[str, str] | None = None):
        environment = _environment()
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        self.variables = dict(variables or {})
        self._templates: dict[str, jinja2.Template] = {}
        for name, text in self.sources.items():
            try:
                self._templates[name] = environment.from_string(text)
            except jinja2.TemplateError as error:
                raise ConfigError(f"chat template {name!r} does not compile: {error}") from None
        if not self._templates:
            raise ConfigError("the list of chat templates is empty")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        moment: float | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt; `moment`: the time that the template is told, in seconds since 1970, None for now.

        Raises InvalidRequest when the template refuses the messages or cannot render them.
        """
        if continue_final_message:
            messages = with_mark(messages)
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name) or next(iter(self._templates.values()))
        values = self.variables | {"strftime_now": _clock(moment)} | kwargs
        try:
            text = template.render(
                **values, messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt
            )
        except _Refused as refused:
            raise InvalidRequest(f"the model's chat template refuses these messages: {refused}", "messages") from None
        except _RENDER_ERRORS as error:
            raise InvalidRequest(
                f"the model's chat template cannot render these messages ({type(error).__name__}); "
                "check the roles, their order and that content is text",
                "messages",
            ) from None
        return cut_at_mark(text) if continue_final_message else text


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    helpers: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception}
    environment.globals.update(helpers)
    environment.filters["tojson"] = _tojson
    return environment


def _raise_exception(message: str) -> None:
    raise _Refused(str(message)[:500])


def _clock(moment: float | None) -> Callable[[str], str]:
    """A plain function, of which the sandbox shows a template nothing; a partial would show what is in it."""

    def strftime_now(form: str) -> str:
        return (datetime.now() if moment is None else datetime.fromtimestamp(moment)).strftime(form)

    return strftime_now


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Plain JSON: models were trained without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

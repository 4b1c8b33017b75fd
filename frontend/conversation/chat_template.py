"""Renders messages as a prompt with the model's Jinja template. Templates come from the operator, never from a request.

The model may continue the last message. Templates write an end after every message, so the last message gets a mark,
and the prompt is cut at the mark.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paged_serve.protocol.errors import ConfigError, InvalidRequest

from .template_needs import TemplateNeeds

_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,  # forbidden in the process that renders
    RecursionError,
    TypeError,
    ValueError,
)


class _Refused(jinja2.TemplateError):
    """The template refused the conversation, by raise_exception."""


class _GenerationBlock(Extension):
    """{% generation %} … {% endgeneration %} marks assistant text for training; for serving only its body matters."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """One or more named templates ("default", "tool_use"). Raises ConfigError if one does not compile.

    `variables` are available in every rendering in addition to the messages: bos_token, eos_token and so on.
    """

    def __init__(self, source: str | Mapping[str, str], variables: Mapping[str, str] | None = None):
        environment = self._environment()
        sources = {"default": source} if isinstance(source, str) else dict(source)
        self._variables = dict(variables or {})
        self._mark = ""
        self._templates: dict[str, jinja2.Template] = {}
        self._read_names: dict[jinja2.Template, Collection[str]] = {}
        self._found_needs: dict[jinja2.Template, TemplateNeeds] = {}
        for name, text in sources.items():
            try:
                self._templates[name] = template = environment.from_string(text)
                self._read_names[template] = meta.find_undeclared_variables(environment.parse(text))
            except jinja2.TemplateError as error:
                raise ConfigError(f"chat template {name!r} does not compile: {error}") from None
            except _ERRORS as error:  # the compiler evaluates constants
                raise ConfigError(f"chat template {name!r} does not compile ({type(error).__name__})") from None
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
        utc_offset_s: int = 0,
        mark: str = "",
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt. `moment`, in seconds since 1970 (None: now), and `utc_offset_s` are the template's clock;
        `mark`: a character that is not escaped when a template writes JSON.

        Raises InvalidRequest if the template refuses the messages or cannot render them, or ignores the documents.
        """
        self._mark = mark
        template = self._template(bool(tools), bool(documents))
        if documents and "documents" not in self._read_names[template]:
            raise InvalidRequest(
                "the model's chat template does not read documents; put their text into a message", "documents"
            )
        messages = self._needs(template).adapted(messages)
        if continue_final_message:
            messages = with_mark(messages)
        values = {
            "strftime_now": _clock(moment, utc_offset_s),
            **kwargs,
            "messages": messages,
            "tools": tools,
            _tools_name(self._read_names[template]): tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._text(template, values)
        return cut_at_mark(text) if continue_final_message else text

    def probe(self) -> None:
        """Have each template render a short message. A failure is not an error, as templates may refuse roles."""
        for with_tools in (False, True):
            self._needs(self._template(with_tools))

    def _template(self, with_tools: bool, with_documents: bool = False) -> jinja2.Template:
        wanted = [name for name, given in (("rag", with_documents), ("tool_use", with_tools)) if given]
        name = next((name for name in (*wanted, "default") if name in self._templates), next(iter(self._templates)))
        return self._templates[name]

    def _text(self, template: jinja2.Template, values: Mapping[str, Any]) -> str:
        try:
            return template.render({**self._variables, **values})
        except _Refused as refused:
            raise InvalidRequest(f"the model's chat template refuses these messages: {refused}", "messages") from None
        except _ERRORS as error:
            # Jinja's own words name what is missing, such as a variable; Python's may show a value of the template.
            reason = f": {str(error)[:200]}" if isinstance(error, jinja2.TemplateRuntimeError) else ""
            raise InvalidRequest(
                f"the model's chat template cannot render these messages ({type(error).__name__}{reason}); "
                "check the roles, their order, that content is text, and whether the template demands tools",
                "messages",
            ) from None

    def _needs(self, template: jinja2.Template) -> TemplateNeeds:
        clock = _clock(0.0, 0)

        def attempt(messages: Sequence[Mapping[str, Any]]) -> str:
            values = {"tools": None, "documents": None, "add_generation_prompt": False, "strftime_now": clock}
            try:
                return self._text(template, {**values, "messages": messages})
            except InvalidRequest:
                return ""

        if template not in self._found_needs:
            self._found_needs[template] = TemplateNeeds.of(attempt)
        return self._found_needs[template]

    def _environment(self) -> ImmutableSandboxedEnvironment:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        helpers: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception}
        environment.globals.update(helpers)
        environment.filters["tojson"] = self._tojson
        del environment.globals["lipsum"], environment.filters["random"]
        return environment

    def _tojson(self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        """Plain JSON: models were trained without HTML escapes."""
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
        return text.replace(json.dumps(self._mark)[1:-1], self._mark) if ensure_ascii and self._mark else text


def _tools_name(read: Collection[str]) -> str:
    """The variable that gets the tools: `tools`, unless the template reads only another name (SmolLM3)."""
    return "xml_tools" if "xml_tools" in read and "tools" not in read else "tools"


def _raise_exception(message: str) -> None:
    raise _Refused(str(message)[:500])


def _clock(moment: float | None, utc_offset_s: int) -> Callable[[str], str]:
    """The clock as a plain function, whose internals the sandbox hides from templates; a partial's are visible."""

    def strftime_now(form: str) -> str:
        if moment is None:
            return datetime.now().strftime(form)
        local = datetime.fromtimestamp(moment, UTC) + timedelta(seconds=utc_offset_s)
        return local.replace(tzinfo=None).strftime(form)

    return strftime_now


MARK = "PAGED-SERVE-GOES-ON-HERE "  # a word that no template changes, and a space that some templates strip


def with_mark(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages, with a mark at the end of the last one's text. Raises InvalidRequest if it has no text."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, list) and content and "text" in content[-1]:
        marked: Any = [*content[:-1], {**content[-1], "text": content[-1]["text"] + MARK}]
    elif isinstance(content, str):
        marked = content + MARK
    else:
        raise InvalidRequest("continue_final_message needs a last message whose content is text", "messages")
    return [*before, {**last, "content": marked}]


def cut_at_mark(prompt: str) -> str:
    """The prompt up to the mark; white space before it is kept only if the template keeps it at a message's end."""
    end = prompt.rfind(MARK.rstrip())
    if end < 0:
        raise InvalidRequest(
            "continue_final_message: the model's chat template does not show the last message's content", "messages"
        )
    return prompt[:end] if prompt.startswith(MARK, end) else prompt[:end].rstrip()

"""The tools of a request to the Responses API."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...conversation.messages import MAX_TOOLS
from ...parsers.custom_tools import InputFormat

MAX_NAME_CHARS = 128
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class ClientTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs."""

    name: Name
    description: str | None = None
    allowed_callers: list[Literal["direct", "programmatic"]] | None = None  # the model calls every tool directly
    defer_loading: bool | None = None  # no effect: every tool is offered from the beginning


class FunctionTool(ClientTool, frozen=True, kw_only=True, tag_field="type", tag="function"):
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: dict[str, Any] | None = None  # no effect: it describes the function's results to programs


class CustomTool(ClientTool, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    format: InputFormat | None = None


class NamespaceTool(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="namespace"
):
    """Tools with a common first name: each call has both names."""

    name: Name
    tools: Annotated[list[FunctionTool | CustomTool], Meta(max_length=MAX_TOOLS)]
    description: str | None = None


class HostedTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A tool that only OpenAI runs, but that clients offer by default. The model does not get it."""


class WebSearch(HostedTool, frozen=True, kw_only=True, tag="web_search"):
    pass


class DatedWebSearch(HostedTool, frozen=True, kw_only=True, tag="web_search_2025_08_26"):
    pass


class WebSearchPreview(HostedTool, frozen=True, kw_only=True, tag="web_search_preview"):
    pass


class DatedWebSearchPreview(HostedTool, frozen=True, kw_only=True, tag="web_search_preview_2025_03_11"):
    pass


class ImageGeneration(HostedTool, frozen=True, kw_only=True, tag="image_generation"):
    pass


class ToolSearch(HostedTool, frozen=True, kw_only=True, tag="tool_search"):
    pass


Hosted = WebSearch | DatedWebSearch | WebSearchPreview | DatedWebSearchPreview | ImageGeneration | ToolSearch
Tool = FunctionTool | CustomTool | NamespaceTool | Hosted

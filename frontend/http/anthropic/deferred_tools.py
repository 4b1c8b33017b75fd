"""Tools with `defer_loading`: the model gets one once the result of the client's tool search refers to it."""

from collections.abc import Iterator, Sequence

from paged_serve.protocol.errors import InvalidRequest

from .schemas import InputMessage, ToolDefinition, ToolReferenceBlock, ToolResultBlock


def loaded_tools(tools: Sequence[ToolDefinition], messages: Sequence[InputMessage]) -> list[ToolDefinition]:
    """The tools that the model gets. Raises InvalidRequest if there are only deferred ones, which it could not find."""
    # Loaded tools follow the others in the order of loading, so prompts begin alike as long as possible.
    deferred = {tool.name: tool for tool in tools if tool.defer_loading}
    found = [deferred[name] for name in dict.fromkeys(_references(messages)) if name in deferred]
    loaded = [tool for tool in tools if not tool.defer_loading] + found
    if tools and not loaded:
        raise InvalidRequest(
            "all tools have defer_loading true, so the model gets none of them; leave it out in at least one, such as "
            "the one that searches for the others",
            "tools",
        )
    return loaded


def _references(messages: Sequence[InputMessage]) -> Iterator[str]:
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                yield from (part.tool_name for part in block.content if isinstance(part, ToolReferenceBlock))

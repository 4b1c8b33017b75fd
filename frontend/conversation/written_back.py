"""Fields that client libraries send back with a conversation and no template reads, each with a reason.

A class here is a base of the struct of that name in messages.py. Its fields are accepted with any value and dropped.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class WrittenBack(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the table's classes."""


class WithMessage(WrittenBack, frozen=True, kw_only=True):
    annotations: Annotated[Any, Meta(description="Where a provider found what content says")] = None
    cache_control: Annotated[Any, Meta(description="A mark for a provider's cache of prefixes")] = None
    id: Annotated[Any, Meta(description="A provider's or a program's name of the message")] = None
    parsed: Annotated[Any, Meta(description="What OpenAI's clients have read content as")] = None
    provider_specific_fields: Annotated[Any, Meta(description="LiteLLM's copy of fields that it does not know")] = None
    reasoning_details: Annotated[Any, Meta(description="OpenRouter's parts of reasoning, which has the text")] = None
    reasoning_items: Annotated[Any, Meta(description="LiteLLM's reasoning that only its provider can decrypt")] = None
    thinking_blocks: Annotated[Any, Meta(description="Signed reasoning; reasoning_content has the text")] = None


class WithPart(WrittenBack, frozen=True, kw_only=True):
    annotations: Annotated[Any, Meta(description="As of a message")] = None
    cache_control: Annotated[Any, Meta(description="As of a message")] = None
    extras: Annotated[Any, Meta(description="LangChain's copy of fields that it does not know")] = None
    id: Annotated[Any, Meta(description="As of a message")] = None
    index: Annotated[Any, Meta(description="The part's place in the stream that it was put together from")] = None
    prompt_cache_breakpoint: Annotated[Any, Meta(description="OpenAI's mark for its cache, as cache_control")] = None


class WithToolCall(WrittenBack, frozen=True, kw_only=True):
    extra_content: Annotated[Any, Meta(description="A signature that only its provider, Google, reads")] = None
    index: Annotated[Any, Meta(description="The call's place in the stream that it was put together from")] = None
    provider_specific_fields: Annotated[Any, Meta(description="As of a message")] = None


class WithFunctionCall(WrittenBack, frozen=True, kw_only=True):
    parsed_arguments: Annotated[Any, Meta(description="What OpenAI's clients have read arguments as")] = None
    provider_specific_fields: Annotated[Any, Meta(description="As of a message")] = None


class WithTool(WrittenBack, frozen=True, kw_only=True):
    cache_control: Annotated[Any, Meta(description="As of a message")] = None


def without_written_back(struct: type[WrittenBack]) -> frozenset[str]:
    """The struct's fields that a template may read."""
    table = [part for part in struct.__bases__ if issubclass(part, WrittenBack)]
    return frozenset(struct.__struct_fields__).difference(*(part.__struct_fields__ for part in table))

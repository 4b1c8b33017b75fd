"""Fields that client libraries send back with a conversation, but that no template reads.

A class WithX here is a base of the struct X in messages.py. Its fields are accepted with any value and dropped.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class SentBack(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the table's classes."""


class WithMessage(SentBack, frozen=True, kw_only=True):
    annotations: Annotated[Any, Meta(description="A provider's sources for the content")] = None
    cache_control: Annotated[Any, Meta(description="A hint for a provider's prefix cache")] = None
    id: Annotated[Any, Meta(description="A provider's or a program's id of the message")] = None
    parsed: Annotated[Any, Meta(description="The content as parsed by OpenAI's clients")] = None
    provider_specific_fields: Annotated[Any, Meta(description="LiteLLM's copy of fields that it does not know")] = None
    reasoning_details: Annotated[Any, Meta(description="OpenRouter's parts of reasoning, which has the text")] = None
    reasoning_items: Annotated[Any, Meta(description="LiteLLM's encrypted reasoning of a provider")] = None
    thinking_blocks: Annotated[Any, Meta(description="Signed reasoning; reasoning_content has the text")] = None


class WithPart(SentBack, frozen=True, kw_only=True):
    annotations: Annotated[Any, Meta(description="As of a message")] = None
    cache_control: Annotated[Any, Meta(description="As of a message")] = None
    extras: Annotated[Any, Meta(description="LangChain's copy of fields that it does not know")] = None
    id: Annotated[Any, Meta(description="As of a message")] = None
    index: Annotated[Any, Meta(description="The part's index in the stream that it was assembled from")] = None
    prompt_cache_breakpoint: Annotated[Any, Meta(description="OpenAI's hint for its cache, like cache_control")] = None


class WithToolCall(SentBack, frozen=True, kw_only=True):
    extra_content: Annotated[Any, Meta(description="A signature that only Google reads")] = None
    index: Annotated[Any, Meta(description="The call's index in the stream that it was assembled from")] = None
    provider_specific_fields: Annotated[Any, Meta(description="As of a message")] = None


class WithFunctionCall(SentBack, frozen=True, kw_only=True):
    parsed_arguments: Annotated[Any, Meta(description="The arguments as parsed by OpenAI's clients")] = None
    provider_specific_fields: Annotated[Any, Meta(description="As of a message")] = None


class WithTool(SentBack, frozen=True, kw_only=True):
    cache_control: Annotated[Any, Meta(description="As of a message")] = None


def without_sent_back(struct: type[SentBack]) -> frozenset[str]:
    """The fields of the struct that a template may read."""
    table = [part for part in struct.__bases__ if issubclass(part, SentBack)]
    return frozenset(struct.__struct_fields__).difference(*(part.__struct_fields__ for part in table))

"""Request bodies of the pooling routes. Names and defaults are vLLM's; a field not listed here is refused by name."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from paged_serve.protocol.messages.message import TokenId
from paged_serve.protocol.messages.pooling_params import MAX_DIMENSIONS, PoolingTask

from ....conversation.messages import Label, Messages, TemplateKwargs
from ..request import fields
from ..request.schemas import TruncationSide

MAX_INPUTS = 2048  # texts or lists of tokens per request; OpenAI's limit

Input = str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
Texts = str | Annotated[list[str], Meta(min_length=1, max_length=MAX_INPUTS)]
Column = Annotated[int, Meta(ge=0, le=MAX_DIMENSIONS, description="Index of a label, from 0")]
Dimensions = Annotated[
    int, Meta(ge=1, le=MAX_DIMENSIONS, description="How many of the first numbers of each embedding to return")
]
EncodingFormat = Literal["float", "base64"]
CohereType = Literal["float", "base64", "binary", "ubinary"]
EmbedDtype = Literal["float32"]
Endianness = Literal["native", "little"]
InputType = Literal["search_query", "search_document", "classification", "clustering"]


class PoolingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all pooling routes accept."""

    stream: ClassVar[bool] = False  # an answer is never streamed

    model: str | None = None
    truncate_prompt_tokens: fields.TruncatePromptTokens | None = None
    truncation_side: TruncationSide | None = None  # default: right
    use_activation: bool | None = None  # default: true; embeddings have length 1, scores are probabilities
    skip_reading_prefix_cache: bool | None = None
    priority: fields.Priority | None = None
    cache_salt: fields.CacheSalt | None = None
    timeout: fields.Timeout | None = None  # or the header X-Request-Timeout
    request_id: fields.RequestId | None = None
    user: Label | None = None


class InputFields(PoolingFields, frozen=True, kw_only=True):
    """Texts, tokens, or one conversation."""

    input: Input | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None  # default: true for input, false for messages
    add_generation_prompt: bool | None = None  # default: false
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    prompt_name: Annotated[str, Meta(max_length=128)] | None = None  # a prompt of the model; "" selects none


class VectorFields(InputFields, frozen=True, kw_only=True):
    encoding_format: EncodingFormat | None = None  # default: float
    embed_dtype: EmbedDtype | None = None
    endianness: Endianness | None = None
    dimensions: Dimensions | None = None  # default: all


class EmbeddingRequest(VectorFields, frozen=True, kw_only=True):
    pass


class PoolingRequest(VectorFields, frozen=True, kw_only=True):
    task: PoolingTask | None = None
    io_processor: Annotated[str, Meta(max_length=128)] | None = None  # a plugin, which makes prompts of `data`
    data: Any = None
    step_tag_id: TokenId | None = None  # token_classify: only this token's places have a score
    returned_token_ids: Annotated[list[Column], Meta(min_length=1, max_length=256)] | None = None  # all columns


class ClassificationRequest(InputFields, frozen=True, kw_only=True):
    pass


class ScoreRequest(PoolingFields, frozen=True, kw_only=True):
    """Exactly one of the pairs of fields is given."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    def texts(self) -> tuple[str, Texts, str, Texts] | None:
        """The one pair that is given, as (name, value, name, value); None if none or both are."""
        pairs = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
        named = {name for pair in pairs for name in pair if getattr(self, name) is not None}
        for first, second in pairs:
            if named == {first, second}:
                return first, getattr(self, first), second, getattr(self, second)
        return None


class TextDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


Documents = Annotated[list[str | TextDocument], Meta(min_length=1, max_length=MAX_INPUTS)]


class RerankRequest(PoolingFields, frozen=True, kw_only=True):
    """The body of Jina's and Cohere's rerank API."""

    query: str
    documents: Documents
    top_n: Annotated[int, Meta(ge=0, description="0: all")] | None = None
    return_documents: bool | None = None  # default: true
    max_tokens_per_doc: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # a longer document is cut


class CohereEmbedRequest(PoolingFields, frozen=True, kw_only=True):
    """The body of Cohere's embed API, version 2."""

    texts: Annotated[list[str], Meta(min_length=1, max_length=MAX_INPUTS)]
    input_type: InputType | None = None
    embedding_types: Annotated[list[CohereType], Meta(min_length=1, max_length=4)] | None = None  # default: float
    truncate: Literal["NONE", "START", "END"] | None = None  # default: END
    output_dimension: Dimensions | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # a longer text is cut

"""POST /v1/chat/completions/batch: several conversations in one request with one choice each, as in vLLM."""

from collections.abc import Iterator

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ...admission import MAX_TOKENS_PER_REQUEST, check_num_sequences
from ..openai.chat import ChatWriter, chat_prompt
from ..openai.endpoints import Endpoint
from ..openai.generation import Prompt
from ..openai.request.schemas import ChatBatchRequest, ChatCompletionRequest
from ..service import Service

_ONE_CONVERSATION = ("stream", "tools", "functions", "prompt_logprobs", "return_token_ids")
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list_of = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def _prompts(service: Service, body: ChatBatchRequest, raw: bytes, moment: int) -> list[Prompt]:
    for name in _ONE_CONVERSATION:
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported in a batch; use /v1/chat/completions", name)
    if (body.n or 1) > 1:
        raise InvalidRequest(f"n is {body.n}; a batch has one choice per conversation", "n")
    check_num_sequences(len(body.messages), 1)
    prompts, num_tokens = list[Prompt](), 0
    for chat, chat_raw in await service.off_loop(len(raw), lambda: [*_chats(body, raw)]):
        try:
            prompts.append(await chat_prompt(service, chat, chat_raw, moment))
        except InvalidRequest as error:
            where = error.param or ""
            if where.startswith("messages"):
                where = f"messages[{len(prompts)}]{where.removeprefix('messages')}"
            raise InvalidRequest(error.message, where or None) from None
        num_tokens += len(prompts[-1].token_ids)
        if num_tokens > max(MAX_TOKENS_PER_REQUEST, service.max_model_len):
            raise InvalidRequest(
                f"the first {len(prompts)} conversations have {num_tokens} tokens; a request may have at most "
                f"{MAX_TOKENS_PER_REQUEST}",
                "messages",
            )
    return prompts


def _chats(body: ChatBatchRequest, raw: bytes) -> Iterator[tuple[ChatCompletionRequest, bytes]]:
    """Each conversation as a separate request, with its JSON."""
    shared = msgspec.structs.asdict(body)
    fields = _fields_of(raw)
    for messages, messages_raw in zip(body.messages, _list_of(fields["messages"]), strict=True):
        shared["messages"], fields["messages"] = messages, messages_raw
        yield ChatCompletionRequest(**shared), msgspec.json.encode(fields)


CHAT_BATCH = Endpoint("chatcmpl-", ChatBatchRequest, _prompts, ChatWriter)

"""POST /v1/responses/input_tokens: the number of prompt tokens of a response."""

from msgspec import UNSET

from ....conversation.strict_json import decode_body
from ....parsers.tool_choice import tool_choice_of
from ...exchange.exchange import Exchange
from ...openai.request.prompts import chat_tokens
from ...responses.answers import InputTokens
from ...responses.chat_request import NOTHING_EARLIER, Earlier
from ...service import Service
from ..responses import TranslatedResponsesRequest, translate, translated_errors
from .earlier_responses import earlier_of, references_of


async def count_input_tokens(service: Service, exchange: Exchange) -> None:
    raw, lenient = await exchange.body(), service.config.server.lenient
    earlier = await _earlier(service, exchange, raw)

    def translated() -> tuple[TranslatedResponsesRequest, bytes, list[str]]:
        as_chat, warnings = translate(raw, lenient, earlier)
        return decode_body(TranslatedResponsesRequest, as_chat)[0], as_chat, warnings

    with translated_errors():
        chat, as_chat, warnings = await service.off_loop(len(raw), translated)
        await service.model_name(chat.model)
        use_tools = tool_choice_of(chat).mode != "none"
        ids, _ = await chat_tokens(service, chat, as_chat, use_tools=use_tools)
    await exchange.send_json(
        InputTokens(object="response.input_tokens", input_tokens=len(ids), warnings=warnings or UNSET)
    )


async def _earlier(service: Service, exchange: Exchange, raw: bytes) -> Earlier:
    if (store := service.stored) is None:
        return NOTHING_EARLIER
    asked = await service.off_loop(len(raw), references_of, raw)
    return await earlier_of(store, exchange.tenant, asked, exchange.lease)

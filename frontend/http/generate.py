"""The two routes that generate: read, check, submit, answer; abort when nobody waits any more."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

import msgspec

from .body import decode_body
from .call import Call
from .chat import ChatWriter, chat_prompt
from .completions import CompletionWriter, completion_prompts
from .errors import HttpError
from .generation import Generation, Prompt
from .schemas import ChatCompletionRequest, CompletionRequest, SamplingFields
from .service import Service


class Writer(Protocol):
    async def answer(self, answer_id: str, model: str, warnings: list[str]) -> msgspec.Struct: ...
    def frames(self, answer_id: str, model: str, warnings: list[str]) -> AsyncGenerator[bytes, None]: ...


async def create_completion(service: Service, call: Call) -> None:
    """Continue one prompt or several."""
    with service.admission.entered():
        raw = await call.body()
        body, warnings = decode_body(CompletionRequest, raw, service.config.server.lenient)
        model = service.model_name(body.model)
        prompts = await completion_prompts(service, body, len(raw))
        async with call.until_disconnect():
            generation = _start(service, call, body, prompts)
            try:
                await generation.submit()
                writer = CompletionWriter(service, body, prompts, generation)
                await _answer(
                    service, call, body, writer, f"cmpl-{body.request_id or call.request_id}", model, warnings
                )
            finally:
                generation.close()


async def create_chat_completion(service: Service, call: Call) -> None:
    """Answer a conversation."""
    with service.admission.entered():
        raw = await call.body()
        body, warnings = decode_body(ChatCompletionRequest, raw, service.config.server.lenient)
        model = service.model_name(body.model)
        prompt = await chat_prompt(service, body, len(raw))
        async with call.until_disconnect():
            generation = _start(service, call, body, [prompt])
            try:
                await generation.submit()
                writer = ChatWriter(service, body, prompt, generation)
                await _answer(
                    service, call, body, writer, f"chatcmpl-{body.request_id or call.request_id}", model, warnings
                )
            finally:
                generation.close()


def _start(service: Service, call: Call, body: SamplingFields, prompts: list[Prompt]) -> Generation:
    if body.stream_options is not None and not body.stream:
        raise HttpError(400, "stream_options needs stream to be true", "stream_options")
    return Generation(
        service, prompts, priority=body.priority or 0, cache_salt=body.cache_salt or "", arrival=call.arrival
    )


async def _answer(
    service: Service, call: Call, body: SamplingFields, writer: Writer, answer_id: str, model: str, warnings: list[str]
) -> None:
    if not body.stream:
        await call.send_json(await writer.answer(answer_id, model, warnings))
        return
    async with aclosing(writer.frames(answer_id, model, warnings)) as frames:
        await call.send_events(frames, service.config.server.sse_keep_alive_interval_s)

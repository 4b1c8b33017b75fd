"""Pooling with AsyncLLM over a fake engine."""

import asyncio

import pytest

from paged_serve import AsyncLLM, LoRARequest
from paged_serve.protocol.errors import InvalidRequest, RequestFailed
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest
from paged_serve.protocol.messages.sampling_params import FinishReason

from ..adapter_folders import make_adapter_folder
from ..fake_core import aborted_ids
from ..fake_core import output as sent_output
from .pooling_llm import PROMPTS, ids, numbers, pooling_models, scripted_supervisors
from .running_llm import core_of

model = pytest.fixture(scope="module")(pooling_models)
supervisor = pytest.fixture(scripted_supervisors)


def run_async(model, body, **options):
    async def main():
        async with AsyncLLM(model, **options) as llm:
            return await asyncio.wait_for(body(llm), 60)

    return asyncio.run(main())


def test_many_coroutines_encode_concurrently(model, supervisor):
    supervisor()

    async def one(llm, text):
        return [each async for each in llm.encode(text, pooling_task="embed")]

    async def body(llm):
        return await asyncio.gather(*(one(llm, text) for text in PROMPTS))

    found = run_async(model, body)
    assert [output.outputs.data.tolist() for (output,) in found] == [numbers(ids(text)) for text in PROMPTS]


def test_an_encoding_carries_the_adapter_of_its_request(model, supervisor, tmp_path):
    supervisor()
    folder = make_adapter_folder(tmp_path / "sql")

    async def body(llm):
        for adapter in (LoRARequest("sql", 1, folder), None):
            [_] = [each async for each in llm.encode("5", lora_request=adapter)]
        return [request.adapter for request in core_of(llm).all(EngineCoreRequest)]

    with_adapter, without = run_async(model, body, enable_lora=True)
    assert (with_adapter.name, with_adapter.path) == ("sql", folder)
    assert without is None


def test_an_encoding_is_aborted_by_its_id_or_by_leaving_it(model, supervisor):
    def script(core, peer, message):
        if isinstance(message, AbortRequests):
            for stream_id in message.stream_ids:
                core.send(sent_output(core.epoch, stream_id, 0, [], FinishReason.ABORT), peer)

    supervisor(script)

    async def body(llm):
        core = core_of(llm)

        async def encode(request_id):
            return [each async for each in llm.encode("5", request_id=request_id)]

        tasks = [asyncio.create_task(encode(name)) for name in ("a", "b")]
        await asyncio.to_thread(core.wait_for, EngineCoreRequest, 2)
        with pytest.raises(InvalidRequest, match="request_id 'a' belongs to a running request"):
            await encode("a")
        await llm.abort("a")
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(core.wait_for, AbortRequests, 2)
        return sorted(aborted_ids(core)), tasks[0].exception(), tasks[1].cancelled()

    aborted, error, cancelled = run_async(model, body)
    assert aborted == [1, 2]
    assert cancelled
    assert isinstance(error, RequestFailed)


def test_async_encode_refuses_with_the_messages_of_llm(model, supervisor):
    supervisor()

    async def body(llm):
        for prompt, options, says in (
            (["1", "2"], {}, "call encode once for each prompt"),
            ("1", {"pooling_task": "score"}, "pooling_task is 'score'"),
            ("1", {"lora_request": 1}, "lora_request is 1; pass LoRARequest"),
            ("1", {"whatever": 1}, "whatever is not a keyword of this method"),
        ):
            with pytest.raises(InvalidRequest, match=says):
                await anext(llm.encode(prompt, **options))

    run_async(model, body)

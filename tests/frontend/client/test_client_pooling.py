"""Vectors through the client library: many in flight, exact after a restart of the core, aborted when dropped."""

import asyncio
import gc

import pytest

from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.frontend.client.sync_client import Client
from paged_serve.protocol.errors import InvalidRequest, Overloaded, RequestExpired, RequestFailed
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreRequest, RejectReason, RequestRejected
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..fake_core import POOLING, PROMPT, aborted_ids, output, pool, vector, with_client

PROMPTS = [[i + 1, 7, 900 - i] for i in range(40)]
EMBED, CLASSIFY = PoolingParams(), PoolingParams(task="classify")


def test_many_prompts_are_in_flight_at_once(run_dir, start_core):
    core = start_core(script=pool, **POOLING)

    async def body(client):
        requests = [client.pool(prompt, EMBED) for prompt in PROMPTS]
        vectors = [await request for request in requests]
        return vectors, await requests[0], client.limits.tasks, client.limits.embedding_size

    vectors, again, tasks, size = with_client(run_dir, body)
    assert vectors == [vector(prompt, EMBED) for prompt in PROMPTS]
    assert again == vectors[0]
    assert (tasks, size) == (POOLING["tasks"], POOLING["embedding_size"])
    assert [unpack_ids(each.prompt_token_ids).tolist() for each in core.all(EngineCoreRequest)] == PROMPTS


def test_the_synchronous_client_pools_too(run_dir, start_core):
    start_core(script=pool, **POOLING)
    with Client.connect(run_dir, timeout_s=60) as client:
        requests = [client.pool(prompt, CLASSIFY) for prompt in PROMPTS]
        assert [request.result() for request in requests] == [vector(prompt, CLASSIFY) for prompt in PROMPTS]
        assert all(request.done for request in requests)
        assert requests[0].result() == vector(PROMPTS[0], CLASSIFY)


def test_terms_reach_the_core(run_dir, start_core):
    core = start_core(script=pool, **POOLING)
    params = PoolingParams(dimensions=3, use_activation=False, skip_reading_prefix_cache=True)
    terms = {"priority": 3, "cache_salt": "s", "tenant": "t", "weight": 2.0}

    async def body(client):
        return await client.pool(PROMPT, params, **terms, timeout_s=9.0)

    assert with_client(run_dir, body).columns == 3
    (sent,) = core.all(EngineCoreRequest)
    assert (sent.pooling_params, sent.sampling_params) == (params, SamplingParams())
    assert {name: getattr(sent, name) for name in terms} == terms
    assert 0 < sent.ttl_s <= 9.0


def test_a_vector_is_computed_again_by_the_next_core(run_dir, start_core):
    first = start_core(**POOLING)

    async def body(client):
        requests = [client.pool(prompt, EMBED) for prompt in PROMPTS]
        first.wait_for(EngineCoreRequest, len(PROMPTS))
        first.kill()
        start_core(epoch=2, script=pool, **POOLING)
        return [await request for request in requests]

    assert with_client(run_dir, body) == [vector(prompt, EMBED) for prompt in PROMPTS]


@pytest.mark.parametrize("how", ["cancelled", "dropped", "aborted", "timed out"])
def test_dropped_requests_are_aborted(run_dir, start_core, how):
    core = start_core(**POOLING)

    async def body(client):
        request = client.pool(PROMPT, EMBED)
        core.wait_for(EngineCoreRequest)
        if how == "cancelled":
            task = asyncio.create_task(asyncio.wait_for(request, 60))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif how == "timed out":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(request, 0.01)
        elif how == "aborted":
            request.abort()
        else:
            del request
            gc.collect()
        await asyncio.to_thread(core.wait_for, AbortRequests)
        return client._session.num_invalid

    assert with_client(run_dir, body) == 0
    assert aborted_ids(core) == [1]


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        ([], EMBED, "the prompt is empty"),
        ([1] * 4097, EMBED, "the prompt has 4097 tokens; this server's context holds 4096 (max_model_len=4096)"),
        ([1000], EMBED, "the prompt has token 1000"),
        ([1], PoolingParams(dimensions=9), "dimensions is 9; this model's embeddings have 8"),
        ([1], PoolingParams(task="classify", dimensions=2), "dimensions is 2; only embeddings take it"),
        ([1], PoolingParams(task="token_classify"), "task is token_classify; this model serves embed, class"),
        ([1], PoolingParams(task="rank"), "pooling_params: Invalid enum value 'rank'"),
        ([1], PoolingParams(dimensions=0), "pooling_params: Expected `int` >= 1"),
    ],
)
def test_invalid_pooling_requests_are_refused_before_they_are_sent(run_dir, start_core, prompt, params, says):
    core = start_core(script=pool, **POOLING | {"tasks": ("embed", "classify")})

    async def body(client):
        with pytest.raises(InvalidRequest) as refused:
            await client.pool(prompt, params)
        return str(refused.value), await client.pool([1] * 4096, EMBED)

    text, longest = with_client(run_dir, body)
    assert text.startswith(says)
    assert longest.columns == 8
    assert len(core.all(EngineCoreRequest)) == 1


def test_a_task_that_the_model_does_not_serve_is_refused(run_dir, start_core):
    start_core(**POOLING)

    async def generates(client):
        with pytest.raises(InvalidRequest, match="task is generate; this model serves embed, classify"):
            await anext(client.submit(PROMPT, SamplingParams(max_tokens=3)))

    with_client(run_dir, generates)


def test_a_generating_model_gives_no_vector(run_dir, start_core):
    start_core()

    async def pools(client):
        with pytest.raises(InvalidRequest, match="task is embed; this model serves generate"):
            await client.pool(PROMPT, EMBED)

    with_client(run_dir, pools)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (RejectReason.OVERLOADED, Overloaded),
        (RejectReason.EXPIRED, RequestExpired),
        (RejectReason.INVALID, InvalidRequest),
        (None, RequestFailed),
    ],
)
def test_a_refusal_raises_the_same_exception_as_for_a_generation(run_dir, start_core, reason, kind):
    def script(core, peer, message):
        if isinstance(message, EngineCoreRequest) and reason is not None:
            core.send(RequestRejected(message.request_id, reason, "because"), peer)
        elif isinstance(message, EngineCoreRequest):
            core.send(output(core.epoch, message.request_id, 0, [], FinishReason.ERROR, error="because"), peer)

    start_core(script=script, **POOLING)

    async def body(client):
        with pytest.raises(kind, match="because"):
            await client.pool(PROMPT, EMBED)

    with_client(run_dir, body)
    with Client.connect(run_dir, timeout_s=60) as client, pytest.raises(kind, match="because"):
        client.pool(PROMPT, EMBED).result()


def test_vectors_that_wait_for_their_reader_are_counted_until_it_has_them(run_dir, start_core):
    start_core(script=pool, **POOLING)

    async def body(client: AsyncClient):
        requests = [client.pool(prompt, EMBED) for prompt in PROMPTS]
        last = await requests[-1]
        waiting = client.num_bytes
        for request in requests:
            await request
        return last, waiting, client.num_bytes

    last, waiting, after = with_client(run_dir, body)
    assert waiting == (len(PROMPTS) - 1) * len(last.values)
    assert after == 0

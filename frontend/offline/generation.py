"""One request of AsyncLLM.generate or chat, from its arrival to its last output."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from paged_serve.protocol.errors import Overloaded
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..client.async_client import AsyncClient
from ..client.async_request import AsyncRequest
from ..client.streams.deltas import SequenceDelta
from ..text.off_loop import LONG, off_loop
from .in_flight import Entry, InFlightLimit
from .model_text import ModelText
from .outputs import OutputBuilder, RequestOutput, generated
from .prompts import Prompt, prepared

MakePrompt = Callable[[], Awaitable[Prompt]]


@dataclass(frozen=True, slots=True)
class PromptThreads:
    """Runs the slow text work of a request in threads, so that the event loop is not blocked."""

    text: ModelText
    threads: ThreadPoolExecutor

    async def prepared(self, params: SamplingParams) -> SamplingParams:
        """Raises InvalidRequest."""
        size = sum(map(len, params.bad_words)) if params.dry is None else LONG
        return await off_loop(self.threads, size, prepared, params, self.text.tokenizer)

    async def token_ids(self, prompt: Prompt) -> list[int]:
        text = "" if prompt.token_ids is not None else prompt.text or ""
        size = LONG if self.text.encoder.may_take_long([text]) else len(text)
        return await off_loop(self.threads, size, self.text.token_ids, prompt)

    async def params_for(self, prompt: Prompt, ids: list[int], params: SamplingParams) -> SamplingParams:
        """Raises InvalidRequest."""
        is_free = params.structured_outputs is None and (prompt.chat is None or prompt.chat.calls is None)
        return await off_loop(self.threads, 0 if is_free else LONG, self.text.params_for, prompt, ids, params)


class Generation:
    """Call `begin`, then `next` until an output is finished, and `end` whatever happens. `abort` may be called at any
    time."""

    def __init__(self, request_id: str, client: AsyncClient, limit: InFlightLimit):
        self.request_id = request_id
        self._client = client
        self._entry = Entry(limit)
        self._request: AsyncRequest | None = None

    async def begin(
        self,
        threads: PromptThreads,
        make_prompt: MakePrompt,
        params: SamplingParams,
        priority: int,
        adapter: Adapter | None = None,
    ) -> None:
        """Prepare and submit the request. A prompt is tokenized only once the request may enter the engine.

        Raises InvalidRequest.
        """
        params = await threads.prepared(params)
        prompt = await make_prompt()
        prompt.truncate_to(self._client.limits.max_model_len, params.max_tokens)
        ids = await threads.token_ids(prompt) if await self._entry.wait(generated(params).n, priority) else []
        params = await threads.params_for(prompt, ids, params)
        self._prompt, self._params, self._priority, self._adapter = prompt, params, priority, adapter
        self._builder = OutputBuilder(threads.text.tokenizer, prompt, ids, params)
        self._builder.output.request_id = self.request_id
        self._submit()

    def _submit(self) -> None:
        if not self._entry.is_aborted:
            self._request = self._client.submit(
                self._builder.output.prompt_token_ids,
                self._params,
                priority=self._priority,
                cache_salt=self._prompt.cache_salt,
                adapter=self._adapter,
            )

    async def next(self) -> RequestOutput:
        """Wait for new tokens and return the whole output so far. Raises the error that ended the request, if any."""
        output = self._builder.output
        while (request := self._request) is not None:
            try:
                delta = await request.__anext__()
            except StopAsyncIteration:
                assert output.finished
                return output
            except Overloaded as full:
                self._request = None
                await self._entry.pause(full)
                self._submit()
                continue
            self._push(request, delta)
            while (more := request.take()) is not None:
                self._push(request, more)
            # A sequence that a stop string ended is finished when the engine confirms it, with its times.
            if not output.finished:
                return self._builder.snapshot()
        self._builder.abort()
        return output

    def abort(self) -> None:
        """Make the output so far the last one. Has no effect on a request that has ended."""
        self._entry.abort()
        if self._request is not None:
            self._request.abort()

    def end(self) -> None:
        """The caller has read the last output or has stopped reading."""
        self.abort()
        self._entry.end()

    def _push(self, request: AsyncRequest, delta: SequenceDelta) -> None:
        if self._builder.push(delta):
            request.abort(delta.index, FinishReason.STOP)

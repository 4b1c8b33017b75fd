"""Sampling steps for bench_cuda.py: 128 rows over 128k tokens, as in a server, including the work of the host."""

from collections.abc import Iterator

import numpy as np
import torch
from cuda_cases import Case, Setting
from cuda_timing import Call

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import NewRow
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.batch.request_rows import RequestRows

ROWS, VOCABULARY, MAX_TOKENS = 128, 131072, 1 << 16
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top-k 50, top-p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "repetition penalty": SamplingParams(temperature=0.8, repetition_penalty=1.1),
    "logprobs 5": SamplingParams(temperature=0.8, logprobs=5),
}


def sampler(setting: Setting) -> Iterator[Case]:
    """Bytes are those of one pass over the logits. For top-p, torch's softmax, sort and multinomial are timed too."""
    rows, vocabulary = (2, 300) if setting.tiny else (ROWS, VOCABULARY)
    for name, params in KINDS.items():
        rivals = {"torch": [torch_call(setting, rows, vocabulary)]} if params.top_p < 1 else {}
        calls = [sampling_call(setting, params, rows, vocabulary)]
        yield Case("sampler", f"{rows} x {vocabulary} {name}", 4.0 * rows * vocabulary, 0, calls, rivals)


def sampling_call(setting: Setting, params: SamplingParams, rows: int, vocabulary: int) -> Call:
    state = RequestRows(rows, MAX_TOKENS, 16, vocabulary)
    for row in range(rows):
        state.reset(NewRow(row, pack_ids([5, 6, 7, 8]), 3, 0, (pack_ids([1]),), row, (2,), params))
    device_sampler = DeviceSampler(setting.launcher, vocabulary, setting.device)
    logits = logits_of(setting, rows, vocabulary)
    places, tokens = np.arange(rows), np.full(rows, 5)

    def call() -> None:
        device_sampler.launch(logits, places, state)
        state.append_tokens(places, tokens)  # a row that stands still would send its counts again

    return call


def torch_call(setting: Setting, rows: int, vocabulary: int) -> Call:
    logits = logits_of(setting, rows, vocabulary)

    def call() -> torch.Tensor:
        weights, ids = (logits / 0.8).softmax(-1).sort(descending=True)
        weights = weights.masked_fill(weights.cumsum(-1) - weights > 0.9, 0.0)
        return ids.gather(1, torch.multinomial(weights, 1))

    return call


def logits_of(setting: Setting, rows: int, vocabulary: int) -> torch.Tensor:
    return torch.empty((rows, vocabulary), device=setting.device).normal_(0, 3)

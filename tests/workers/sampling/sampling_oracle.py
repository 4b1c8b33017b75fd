"""The sampler for one row, in plain Python: slow, no arrays, nothing shared with the code under test."""

import math

import numpy as np

from paged_serve.protocol.messages.sampling_params import SamplingParams

MASK = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        x, y = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (y >> 32) ^ b ^ k, y & MASK, (x >> 32) ^ d ^ m, x & MASK
        k, m = (k + 0x9E3779B9) & MASK, (m + 0xBB67AE85) & MASK
    return a, b, c, d


def uniform(seed: int, position: int) -> float:
    words = philox((position & MASK, position >> 32, 0, 0), (seed & MASK, seed >> 32))
    return ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


def adjusted(logits, params: SamplingParams, prompt, output, eos=()) -> list[np.float32]:
    """Steps 2 and 3: constraints, then penalties, each in float32."""
    x = [np.float32(value) for value in logits]
    for token in range(len(x)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            x[token] = np.float32(-np.inf)
    for word in params.bad_words_token_ids:
        *prefix, last = word
        if list(output[len(output) - len(prefix) :]) == prefix and len(prefix) <= len(output):
            x[last] = np.float32(-np.inf)
    if len(output) < params.min_tokens:
        for token in {*eos, *params.stop_token_ids}:
            x[token] = np.float32(-np.inf)
    for token, bias in (params.logit_bias or {}).items():
        x[token] += np.float32(max(-100.0, min(100.0, bias)))
    for token in {*prompt, *output}:
        repetition = np.float32(params.repetition_penalty)
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        count = list(output).count(token)
        x[token] -= np.float32(params.frequency_penalty) * np.float32(count)
        x[token] -= np.float32(params.presence_penalty) * np.float32(count > 0)
    return x


def kept_weights(x: list[np.float32], params: SamplingParams) -> dict[int, float]:
    """Step 5: token -> weight of what stays in the draw."""
    scaled = [(value - max(x)) / np.float32(params.temperature) for value in x]
    ranked = sorted(range(len(x)), key=lambda token: (-x[token], token))
    if params.min_p > 0:
        ranked = [token for token in ranked if scaled[token] >= np.float32(math.log(params.min_p))]
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    weights = {token: math.exp(scaled[token]) for token in ranked}
    if params.top_p < 1.0:
        goal, mass = params.top_p * sum(weights.values()), 0.0
        for count, token in enumerate(ranked, start=1):
            mass += weights[token]
            if mass >= goal:
                ranked = ranked[:count]
                break
    return {token: weights[token] for token in ranked}


def sample(logits, params: SamplingParams, seed: int, prompt, output, eos=()) -> int | None:
    """The token, or None when no token may be chosen."""
    x = adjusted(logits, params, prompt, output, eos)
    if max(x) == -np.inf:
        return None
    if params.greedy:
        return min(range(len(x)), key=lambda token: (-x[token], token))
    weights = kept_weights(x, params)
    left = uniform(seed, len(output)) * sum(weights.values())
    for token in sorted(weights):
        left -= weights[token]
        if left < 0:
            return token
    raise AssertionError("the uniform number is below 1")

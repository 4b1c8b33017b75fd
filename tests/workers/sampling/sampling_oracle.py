"""The sampler for one row in plain Python: slow, without arrays, independent of the code under test."""

import math

import numpy as np

from paged_serve.protocol.messages.samplers import Dry
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


def uniform(seed: int, position: int, stream: int = 0) -> float:
    words = philox((position & MASK, position >> 32, stream, 0), (seed & MASK, seed >> 32))
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
    for token, loss in repeating(params.dry, [*prompt, *output]).items():
        x[token] -= np.float32(loss)
    return x


def repeating(dry: Dry | None, text: list[int]) -> dict[int, float]:
    """The penalty of each token that would continue a repetition."""
    if dry is None or dry.multiplier == 0:
        return {}
    if dry.penalty_last_n >= 0:
        text = text[len(text) - min(dry.penalty_last_n, len(text)) :]
    longest: dict[int, int] = {}
    for end in range(len(text) - 1):
        length = 0
        while length < 128 and length <= end and text[end - length] == text[len(text) - 1 - length]:
            if text[end - length] in dry.breaker_token_ids:
                break
            length += 1
        if length >= dry.allowed_length and text[end + 1] not in dry.breaker_token_ids:
            longest[text[end + 1]] = max(length, longest.get(text[end + 1], 0))
    return {token: min(dry.multiplier * dry.base ** (n - dry.allowed_length), 1e6) for token, n in longest.items()}


def kept_weights(x: list[np.float32], params: SamplingParams) -> dict[int, float]:
    """Step 5: the weights of the tokens that remain in the draw."""
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
    return {token: weights[token] for token in ranked}  # in rank order


def without_top_choices(weights: dict[int, float], threshold: float) -> dict[int, float]:
    """The weights that XTC leaves, in a step in which it applies."""
    goal = threshold * sum(weights.values())
    likely = [token for token, weight in weights.items() if weight > 0 and weight >= goal]
    return {token: weight for token, weight in weights.items() if token not in likely[:-1]}


def sample(logits, params: SamplingParams, seed: int, prompt, output, eos=()) -> int | None:
    """The token, or None if no token is allowed."""
    x = adjusted(logits, params, prompt, output, eos)
    if max(x) == -np.inf:
        return None
    if params.greedy:
        return min(range(len(x)), key=lambda token: (-x[token], token))
    weights = kept_weights(x, params)
    if params.xtc is not None and uniform(seed, len(output), 1) < params.xtc.probability:
        weights = without_top_choices(weights, params.xtc.threshold)
    left = uniform(seed, len(output)) * sum(weights.values())
    for token in sorted(weights):
        left -= weights[token]
        if left < 0:
            return token
    raise AssertionError("the uniform number is below 1")

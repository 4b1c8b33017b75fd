"""The sampler's kernels on every built instruction set, at sizes around tile boundaries, against numpy and float64."""

from functools import cache

import numpy as np
import pytest

from paged_serve.protocol.messages.samplers import Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.kernels.cpu.sampling import draw_tokens, mask_logits, scan_logits, token_logprobs
from paged_serve.workers.sampling.numpy_passes import NumpyPasses
from paged_serve.workers.sampling.ordering import best, rank_of, token_of
from paged_serve.workers.sampling.passes import NO_TOKEN

from ..sampling import sampling_oracle as oracle

VOCAB_SIZES = [1, 2, 15, 17, 255, 256, 257, 1000, 4099]


def some_logits(rows, vocab_size, spread, seed=0):
    return np.random.default_rng(seed).normal(0, spread, (rows, vocab_size)).astype(np.float32)


def apart(logits):
    """The same rows, strided, with other numbers in between."""
    rows, vocab_size = logits.shape
    wide = np.full((rows, vocab_size + 5), 9e9, np.float32)
    wide[:, :vocab_size] = logits
    return wide[:, :vocab_size]


def draw(pool, logits, params, uniform, masks=None, mask_of=None):
    """Draw a token for each row of `logits` with the parameters `params` and the random number `uniform`.

    If a row has XTC, it applies in this step.
    """
    count = len(logits)
    if masks is None:
        masks, mask_of = np.empty((0, -(-logits.shape[1] // 32)), np.int32), np.full(count, -1)
    return draw_tokens(
        pool,
        apart(logits),
        np.arange(count),
        np.arange(count),
        np.array([one.temperature for one in params], np.float32),
        np.log(np.array([max(one.min_p, 1e-30) for one in params], np.float32)),
        np.array([max(one.top_k, 0) for one in params], np.int64),
        np.array([one.top_p for one in params]),
        np.asarray(uniform, np.float64),
        np.array([2.0 if one.xtc is None else one.xtc.threshold for one in params]),
        masks,
        mask_of,
    )


def expected_token(logits, params, uniform):
    weights = oracle.kept_weights(list(logits), params)
    if params.xtc is not None:
        weights = oracle.without_top_choices(weights, params.xtc.threshold)
    left = uniform * sum(weights.values())
    for token in sorted(weights):
        left -= weights[token]
        if left < 0:
            return token
    raise AssertionError("the uniform number is below 1")


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_a_scan_finds_the_first_maximum_and_non_finite_values(cpu_pools, vocab_size):
    logits = np.round(some_logits(40, vocab_size, 2.0))  # many ties
    poisoned = np.random.default_rng(1).random(40) < 0.4
    for row in np.flatnonzero(poisoned):
        logits[row, row * 37 % vocab_size] = (np.nan, np.inf, -np.inf)[row % 3]
    for pool in cpu_pools:
        found, finite = scan_logits(pool, apart(logits))
        assert finite.tolist() == (~poisoned).tolist()
        assert found[finite].tolist() == logits[finite].argmax(1).tolist()
        assert ((found >= 0) & (found < vocab_size)).all()


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_a_mask_leaves_only_allowed_tokens(cpu_pools, vocab_size):
    rng = np.random.default_rng(3)
    words = -(-vocab_size // 32)
    masks = rng.integers(-(2**31), 2**31, (20, words)).astype(np.int32)
    masks[3], masks[4] = -1, 0
    indices, mask_of = rng.permutation(40)[:20], rng.permutation(20)
    logits = some_logits(40, vocab_size, 2.0)
    expected = logits.copy()
    best = NumpyPasses(vocab_size).mask(expected, indices, masks, mask_of)
    assert best[mask_of == 4] == NO_TOKEN
    for row, mask in zip(indices, masks[mask_of], strict=True):
        for token in range(vocab_size):
            assert np.isneginf(expected[row, token]) == (not (int(mask[token // 32]) >> token % 32) & 1)
    for pool in cpu_pools:
        wide = apart(logits)
        assert mask_logits(pool, wide, indices, masks, mask_of).tolist() == best.tolist()
        assert wide.tobytes() == apart(expected).tobytes()
        assert (wide.base[:, vocab_size:] == np.float32(9e9)).all()


@pytest.mark.parametrize("name", ["plain", "top-p", "top-k", "all three", "xtc of top-p"])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_a_masked_row_is_drawn_like_a_row_of_its_allowed_tokens(cpu_pools, vocab_size, name):
    rng = np.random.default_rng(5)
    logits, uniform = some_logits(20, vocab_size, 2.0), rng.random(20)
    masks = rng.integers(-(2**31), 2**31, (20, -(-vocab_size // 32))).astype(np.int32)
    masks[::3, :9] = 0  # a whole tile
    masks[:, 0] |= 1
    masks[4], masks[5] = -1, 0
    without = logits.copy()
    NumpyPasses(vocab_size).mask(without, np.arange(20), masks, np.arange(20))
    without[[7, 8]] = logits[[7, 8]]
    mask_of, backwards = 19 - np.arange(20), np.ascontiguousarray(masks[::-1])
    mask_of[[7, 8]] = -1
    for pool in cpu_pools:
        params = [PARAMS[name]] * 20
        held = draw(pool, logits, params, uniform, backwards, mask_of)
        assert held.tolist() == draw(pool, without, params, uniform).tolist()
        assert np.flatnonzero(held == NO_TOKEN).tolist() == [5]


PARAMS = {
    "plain": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(top_p=0.9, temperature=0.7),
    "top-p nearly all": SamplingParams(top_p=0.9999),
    "top-p nearly none": SamplingParams(top_p=1e-7),
    "top-k": SamplingParams(top_k=20),
    "top-k of more than the tiles": SamplingParams(top_k=700, top_p=0.6),
    "all three": SamplingParams(top_k=50, top_p=0.8, min_p=0.02, temperature=1.4),
    "min-p": SamplingParams(min_p=0.1),
    "xtc": SamplingParams(xtc=Xtc(probability=1.0, threshold=0.013)),
    "xtc of top-p": SamplingParams(xtc=Xtc(probability=1.0, threshold=0.0017), top_p=0.7),
    "xtc of everything": SamplingParams(xtc=Xtc(probability=1.0, threshold=0.0), top_k=40, min_p=0.02),
}


@cache
def cases(name, spread):
    """(logits, uniform numbers, expected tokens) for a few vocabularies; the definition is slow."""
    made = []
    for vocab_size in (17, 257, 800):
        logits, uniform = some_logits(2, vocab_size, spread), np.random.default_rng(vocab_size).random(2)
        drawn = [expected_token(row, PARAMS[name], number) for row, number in zip(logits, uniform, strict=True)]
        made.append((logits, uniform, drawn))
    return made


@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0, 30.0])  # equal, flat, typical, peaked
@pytest.mark.parametrize("name", PARAMS)
def test_tokens_match_the_definition(cpu_pools, name, spread):
    for logits, uniform, expected in cases(name, spread):
        for pool in cpu_pools:
            assert draw(pool, logits, [PARAMS[name]] * 2, uniform).tolist() == expected


def test_the_ends_of_the_unit_interval_draw_the_first_and_the_last_kept_token(cpu_pools):
    logits = np.full((2, 1000), -np.inf, np.float32)
    logits[:, [3, 500, 998]] = 1.0
    tokens = draw(cpu_pools[0], logits, [SamplingParams()] * 2, [0.0, 1 - 2**-53])
    assert tokens.tolist() == [3, 998]


def test_a_token_of_very_little_weight_can_be_drawn_and_one_of_zero_weight_cannot(cpu_pools):
    logits = np.full((21, 1000), -np.inf, np.float32)
    logits[:20, :200] = some_logits(20, 200, 2.0)  # sums in another order may stay below the target
    logits[20, [3, 300]] = 0.0, -25.0
    tokens = draw(cpu_pools[0], logits, [SamplingParams()] * 21, [1 - 2**-53] * 20 + [1 - 1e-12])
    assert (tokens[:20] < 200).all()
    assert tokens[20] == 300


def test_a_draw_at_the_border_of_two_tiles_goes_to_the_later_one(cpu_pools):
    logits = np.full((2, 1000), -np.inf, np.float32)
    logits[:, [3, 300]] = 1.0
    assert draw(cpu_pools[0], logits, [SamplingParams()] * 2, [0.5, np.nextafter(0.5, 0)]).tolist() == [300, 3]


def test_top_k_may_leave_out_a_single_token(cpu_pools):
    assert draw(cpu_pools[0], np.zeros((1, 17), np.float32), [SamplingParams(top_k=16)], [1 - 2**-53]).tolist() == [15]


def test_top_p_ends_with_the_last_of_many_equal_tokens(cpu_pools):
    """There are 600 tokens of weight 1 and 600 of weight 1/2: the first 600 just reach two thirds of the mass."""
    logits = np.repeat(np.log(np.array([[1.0, 0.5]], np.float32)), 600, axis=1)
    assert draw(cpu_pools[0], logits, [SamplingParams(top_p=0.66666)], [1 - 2**-53]).tolist() == [599]


def test_top_p_near_the_mass_of_many_equal_tokens_keeps_no_others(cpu_pools):
    """The sums of tiles are above the mass of the equal tokens by a rounding, and some goals are in between."""
    logits = np.repeat(np.array([0.0, -1.5, -6.0], np.float32), [1, 700, 2000])
    weights = np.exp(logits.astype(np.float64))
    border = weights[:701].sum() / weights.sum()
    params = [SamplingParams(top_p=border * share) for share in np.linspace(1 - 2e-7, 1 + 2e-7, 41)]
    for pool in cpu_pools:
        tokens = draw(pool, np.tile(logits, (41, 1)), params, [1 - 2**-53] * 41)
        assert set(tokens.tolist()) == {700, 701}


def test_a_token_exactly_at_the_limit_of_min_p_is_kept_and_the_next_float_is_not(cpu_pools):
    params = SamplingParams(min_p=0.3)
    limit = np.log(np.float32(params.min_p))
    logits = np.full((2, 1000), -50.0, np.float32)
    logits[:, 7] = 0.0
    logits[:, 998] = limit, np.nextafter(limit, np.float32(-1e9))
    assert draw(cpu_pools[0], logits, [params] * 2, [0.999, 0.999]).tolist() == [998, 7]


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_logprobs_are_near_float64_and_in_rank_order(cpu_pools, vocab_size):
    logits = some_logits(9, vocab_size, 4.0)
    logits[::2] = np.round(logits[::2])
    tokens = np.arange(9) * 101 % vocab_size
    counts = np.minimum(np.array([0, 1, 2, 5, 20, 100, 700, vocab_size, 3]), vocab_size)
    wide = logits.astype(np.float64)
    exact = wide - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True)) - wide.max(1, keepdims=True)
    for pool in cpu_pools:
        ids, values, ranks = token_logprobs(pool, apart(logits), np.arange(9), tokens, counts)
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True)):
            ranked = token_of(best(logits[row : row + 1], int(count)))[0].tolist() if count else []
            assert ids[row, : 1 + count].tolist() == [token, *ranked]
            assert ranks[row] == rank_of(logits[row], int(token))
            assert np.abs(values[row, : 1 + count] - exact[row, ids[row, : 1 + count]]).max() < 4e-6


def test_a_row_keeps_its_bits_in_any_batch(cpu_pools):
    logits = some_logits(60, 3001, 1.0)
    params = [list(PARAMS.values())[row % len(PARAMS)] for row in range(60)]
    uniform = np.random.default_rng(3).random(60)
    whole = draw(cpu_pools[0], logits, params, uniform)
    counts = np.arange(60)
    whole_logprobs = token_logprobs(cpu_pools[0], logits, counts, whole, counts)
    for pool in cpu_pools:
        for size in (1, 7, 59):
            chosen = np.random.default_rng(size).permutation(60)[:size]
            found = draw(pool, logits[chosen], [params[row] for row in chosen], uniform[chosen])
            assert found.tolist() == whole[chosen].tolist()
            ids, values, ranks = token_logprobs(pool, logits, chosen, whole[chosen], counts[chosen])
            for i, row in enumerate(chosen):
                assert ids[i, : 1 + row].tobytes() == whole_logprobs[0][row, : 1 + row].tobytes()
                assert values[i, : 1 + row].tobytes() == whole_logprobs[1][row, : 1 + row].tobytes()
                assert ranks[i] == whole_logprobs[2][row]

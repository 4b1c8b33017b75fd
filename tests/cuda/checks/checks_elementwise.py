"""Checks of norms, rotation, gates and block copies, each for one shape on any launcher.

The oracles are float64 and torch; results must be equal if they are copies, or floats that torch computes in the same
steps, rounded once.
"""

import torch

from paged_serve.workers.checkpoint.blocks.fp8_codes import fp8_codes, fp8_scales
from paged_serve.workers.kernels.cuda.quantize import quantize_rows
from paged_serve.workers.layers.rotary import rotate

from ...kernel_oracles import activated, centred, gated, normalised, rotated
from ...workers.cache_views import writing_view
from ..operations import CpuKernels, activate, cap_logits, layer_norm, rms_norm, rotate_and_cache
from ..small_floats import FORMATS, ROUNDING

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
EPS = 1e-5
UNTOUCHED = 0x5A  # each byte of memory that must not be written to


def untouched(dtype, device, count, *shape):
    """A tensor [count + 2, *shape] of UNTOUCHED bytes: the first and the last entries are guards."""
    wide = (count + 2, *shape[:-1], shape[-1] * dtype.itemsize)
    return torch.full(wide, UNTOUCHED, dtype=torch.uint8, device=device).view(dtype)


def inner_of(guarded):
    """The entries between the guards, on the CPU; asserts that the guards are unchanged."""
    guarded = guarded.cpu()
    assert (bits(guarded)[[0, -1]] == UNTOUCHED).all(), "memory before or after an array was written"
    return guarded[1:-1]


def check_rms_norm(launcher, dtype, rows, size, device="cpu"):
    random = torch.Generator().manual_seed(size)
    hidden, delta = torch.randn((2, rows, size), generator=random).to(dtype)
    hidden[0], delta[0] = hidden[0] / 1024, delta[0] / 1024  # so small that eps counts
    weight = torch.randn(size, generator=random)
    added = hidden + delta
    expected = normalised(added, weight, EPS)
    hidden, delta, weight = hidden.to(device), delta.to(device), weight.to(device)
    guarded = untouched(dtype, device, rows, size)
    rms_norm(launcher, hidden, weight, EPS, delta, guarded[1:-1])
    found = inner_of(guarded)
    assert torch.equal(hidden.cpu(), added)
    torch.testing.assert_close(found.double(), expected, rtol=ROUNDING[dtype] * 1.01, atol=1e-7)
    alone = rms_norm(launcher, added[-1:].clone().to(device), weight, EPS).cpu()
    assert torch.equal(alone, found[-1:])


def check_layer_norm(launcher, dtype, rows, size, has_bias, device="cpu"):
    """The last row's mean is far from 0, so the variance must be computed from centred values."""
    random = torch.Generator().manual_seed(size)
    hidden, delta = torch.randn((2, rows, size), generator=random).to(dtype)
    hidden[0], delta[0] = hidden[0] / 1024, delta[0] / 1024  # so small that eps counts
    hidden[-1] += 16 * (size > 8)
    weight, bias = torch.randn((2, size), generator=random)
    added, bias = hidden + delta, bias if has_bias else None
    expected = centred(added, weight, bias, EPS)
    hidden, delta, weight = hidden.to(device), delta.to(device), weight.to(device)
    bias = bias.to(device) if has_bias else None
    guarded = untouched(dtype, device, rows, size)
    layer_norm(launcher, hidden, weight, bias, EPS, delta, guarded[1:-1])
    found = inner_of(guarded)
    assert torch.equal(hidden.cpu(), added)
    torch.testing.assert_close(found.double(), expected, rtol=ROUNDING[dtype] * 1.01, atol=2e-5)
    alone = layer_norm(launcher, added[-1:].clone().to(device), weight, bias, EPS).cpu()
    assert torch.equal(alone, found[-1:])


def check_activation(launcher, dtype, rows, size, activation, is_gated=True, device="cpu"):
    random = torch.Generator().manual_seed(size)
    x = (3 * torch.randn((rows, size * (1 + is_gated)), generator=random)).to(dtype)
    x[0, :6] = torch.tensor([0.0, -0.0, 30.0, -30.0, 200.0, -200.0])
    expected = gated(x, activation) if is_gated else activated(x, activation)
    guarded = untouched(dtype, device, rows, size)
    activate(launcher, x.to(device), activation, is_gated, guarded[1:-1])
    found = inner_of(guarded)
    # Near x = -5 a float keeps no more of 1 + erf(x) than this; torch's GELU has the same error.
    gate, up = x.double().chunk(2, dim=-1) if is_gated else (x.double(), 1.0)
    absolute = (gate * up).abs() * 2.0**-22 + FORMATS[dtype].values[1]
    off = (found.double() - expected).abs()
    assert (off <= absolute + 1.01 * ROUNDING[dtype] * found.double().abs()).all()
    alone = activate(launcher, x[-1:].contiguous().to(device), activation, is_gated).cpu()
    assert torch.equal(alone, found[-1:])
    if is_gated:
        gates, ups = x[:, :size].contiguous().to(device), torch.cat((x, x), 1).to(device)[:, size : 2 * size]
        assert torch.equal(activate(launcher, gates, activation, True, up=ups).cpu(), found)


def check_capped_logits(launcher, rows, columns, cap, device="cpu"):
    wide = 2 * cap * torch.randn((rows, columns + 3), generator=torch.Generator().manual_seed(columns))
    wide[0, :4] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf])
    found = wide.clone().to(device)
    cap_logits(launcher, found[:, :columns], cap)
    expected = cap * torch.tanh(wide[:, :columns].double() / cap)
    torch.testing.assert_close(found[:, :columns].cpu().double(), expected, rtol=0, atol=3e-7 * cap)
    assert torch.equal(found[:, columns:].cpu(), wide[:, columns:]), "memory between rows was written"
    alone = cap_logits(launcher, wide[-1:, :columns].contiguous().to(device), cap).cpu()
    assert torch.equal(alone, found[-1:, :columns].cpu())


def check_quantized_rows(launcher, dtype, rows, size, device="cpu"):
    """Codes and scales equal the definition in every bit, and those of the torch backend."""
    random = torch.Generator().manual_seed(size)
    hidden = (torch.randn((rows, size), generator=random) * 4.0 ** torch.arange(rows).unsqueeze(1)).to(dtype)
    hidden[0, size - 1] = -hidden[0].abs().amax() * 1.5  # the largest element is the last one, and negative
    hidden[1, min(size, 4096) - 1] = hidden[1].abs().amax() * 1.5  # the largest element is in the last warp
    if size >= 64:  # borders between codes: division and multiplication by the inverse differ there
        values = torch.from_numpy(FORMATS[FP8].values[:-1])
        borders = 7 * (values[1:] + values[:-1]) / 2
        hidden[2, :64] = torch.cat((borders[-63:], 7 * values[-1:])).to(dtype)
        hidden[2, 64:] = 0
    hidden[-1] = 0
    codes, scales = untouched(FP8, device, rows, size), untouched(torch.float32, device, rows, 1)
    quantize_rows(launcher, hidden.to(device), codes[1:-1], scales[1:-1])
    found, found_scales = inner_of(codes), inner_of(scales)
    wide = hidden.float()
    expected_scales = (wide.abs().amax(1, keepdim=True) / 448).clamp(min=2.0**-126)
    assert torch.equal(found_scales, expected_scales)
    assert torch.equal(bits(found), bits(rounded(wide / expected_scales, FP8)))
    assert torch.equal(found_scales[:, 0], fp8_scales(hidden))
    assert torch.equal(bits(found), bits(fp8_codes(hidden, found_scales[:, 0])))


class Rotation:
    """Random tokens, of which every third is padding, and their expected rotation."""

    def __init__(self, dtype, cached, head_dim, heads, kv_heads, block_size, tokens, norms, device):
        random = torch.Generator().manual_seed(head_dim + tokens)
        self.dtype, self.cached, self.head_dim, self.heads, self.kv_heads = dtype, cached, head_dim, heads, kv_heads
        self.tokens, self.block_size, self.device = tokens, block_size, device
        self.blocks = tokens // block_size + 3
        self.projected = torch.randn((tokens, heads + 2 * kv_heads, head_dim), generator=random).to(dtype)
        self.projected[0] /= 1024  # so small that eps counts
        turns = torch.rand((tokens + 9, head_dim // 2), generator=random) * 6.28
        self.angles = torch.cat((turns.cos(), turns.sin()), 1)
        self.positions = torch.randperm(len(self.angles), generator=random)[:tokens]
        self.slots = torch.randperm(self.blocks * block_size, generator=random)[:tokens]
        self.slots[1::3] = -1
        self.norms = 1 + torch.randn((2, head_dim), generator=random) / 4 if norms else (None, None)
        self.options = {}
        if norms == "own":  # for each head, centred, with biases; and queries that grow with their positions
            self.norms, biases = (
                [own + torch.randn((count, head_dim), generator=random) / 4 for count in (heads, kv_heads)]
                for own in (1, 0)
            )
            # Powers of two: csrc/cpu rounds queries before it scales them.
            scales = 2.0 ** torch.randint(-1, 2, (len(self.angles),), generator=random)
            self.options = {"biases": tuple(biases), "is_centred": True, "query_scales": scales}
        self.normalises_values = norms == "values, too"
        self.scales = (0.25, 0.5) if cached == FP8 else (1.0, 1.0)

    def run(self, launcher, tokens=slice(None)):
        """The written queries, keys and values, else UNTOUCHED; the cache is viewed as [blocks * size, heads, dim]."""
        on = [None if norm is None else norm.to(self.device) for norm in self.norms]
        projected = self.projected[tokens].flatten(1).to(self.device)
        cache = self.blocks, self.kv_heads, self.block_size, self.head_dim
        query = untouched(self.dtype, self.device, len(projected), self.heads, self.head_dim)
        keys, values = untouched(self.cached, self.device, *cache), untouched(self.cached, self.device, *cache)
        indices = self.positions[tokens].to(self.device), self.slots[tokens].to(self.device)
        view = writing_view(*indices, keys[1:-1], values[1:-1])
        angles = self.angles.to(self.device)
        options = dict(self.options)
        if self.normalises_values:
            options["normalises_values"] = True
        if "biases" in options:
            options["biases"] = tuple(bias.to(self.device) for bias in options["biases"])
            options["query_scales"] = options["query_scales"].to(self.device)
        rotate_and_cache(launcher, projected, angles, view, query[1:-1], *on, EPS, self.scales, **options)
        query, keys, values = (inner_of(guarded) for guarded in (query, keys, values))
        return query, *(cache.transpose(1, 2).flatten(0, 1) for cache in (keys, values))

    def rotated(self):
        """The expected queries, keys and values: normalised and rotated in float64."""
        query, key, value = self.projected.double().split([self.heads, self.kv_heads, self.kv_heads], 1)
        if self.options:
            pairs = zip((query, key), self.norms, self.options["biases"], strict=True)
            query, key = (centred(x, norm, bias, EPS) for x, norm, bias in pairs)
        elif self.norms[0] is not None:
            query, key = (normalised(x, norm, EPS) for x, norm in zip((query, key), self.norms, strict=True))
        if self.normalises_values:
            value = normalised(value, torch.ones(self.head_dim), EPS)
        angles, query_scales = self.angles[self.positions], self.options.get("query_scales", torch.ones(10_000))
        factors = query_scales[self.positions].double().view(-1, 1, 1)
        return rotated(query, angles) * factors, rotated(key, angles), value

    def rotated_in_float(self):
        """Queries and keys rotated by torch in float32, before rounding."""
        query, key, _ = self.projected.float().split([self.heads, self.kv_heads, self.kv_heads], 1)
        cosine, sine = self.angles[self.positions].unsqueeze(1).chunk(2, -1)
        return rotate(query, cosine, sine), rotate(key, cosine, sine)


def check_rotation(launcher, dtype, cached, head_dim, heads, kv_heads, block_size, tokens, norms, device="cpu"):
    case = Rotation(dtype, cached, head_dim, heads, kv_heads, block_size, tokens, norms, device)
    found = case.run(launcher)
    used = case.slots >= 0
    places = case.slots[used]
    _check_untouched(found, used, places)
    query, keys, values = found[0][used], found[1][places], found[2][places]
    expected_query, expected_keys, expected_values = (x[used] for x in case.rotated())
    _check_close(query, expected_query, 1.0)
    _check_close(keys, expected_keys, case.scales[0])
    if case.normalises_values:
        _check_close(values, expected_values, case.scales[1])
    else:
        assert torch.equal(bits(values), bits(rounded(expected_values / case.scales[1], cached)))
    if not norms and not isinstance(launcher, CpuKernels):  # CPU kernels use fused multiply-adds
        query_in_float, keys_in_float = (x[used] for x in case.rotated_in_float())
        assert torch.equal(bits(query), bits(rounded(query_in_float, dtype)))
        assert torch.equal(bits(keys), bits(rounded(keys_in_float / case.scales[0], cached)))
    last = int(used.nonzero()[-1])
    for alone, together, at in zip(
        case.run(launcher, slice(last, last + 1)), found, (0, *2 * [places[-1]]), strict=True
    ):
        assert torch.equal(bits(alone[at]), bits(together[last if together is found[0] else at]))


def check_rotated_queries(launcher, dtype, head_dim, heads, tokens, device="cpu"):
    """Queries alone have the bits that they have beside keys and values, and the cache is not written."""
    case = Rotation(dtype, dtype, head_dim, heads, 1, 16, tokens, True, device)
    together, used = case.run(launcher)[0], case.slots >= 0
    view = writing_view(case.positions.to(device), case.slots.to(device), *_caches(case, device))
    projected, angles = case.projected[:, :heads].flatten(1).contiguous().to(device), case.angles.to(device)
    query = torch.zeros_like(together).to(device)
    norm = case.norms[0].to(device)
    rotate_and_cache(launcher, projected, angles, view, query, norm, None, EPS, (1.0, 1.0), has_keys=False)
    assert torch.equal(bits(query.cpu()[used]), bits(together[used]))
    assert all((bits(cache[0].cpu()) == UNTOUCHED).all() for cache in (view.cache.keys, view.cache.values))


def _caches(case, device):
    shape = case.blocks, case.kv_heads, case.block_size, case.head_dim
    return [untouched(case.cached, device, *shape)[1:-1] for _ in range(2)]


def _check_untouched(found, used, places):
    query, *caches = found
    assert (bits(query[~used]) == UNTOUCHED).all(), "queries of padding tokens were written"
    for cache in caches:
        others = torch.ones(len(cache), dtype=torch.bool)
        others[places] = False
        assert (bits(cache[others]) == UNTOUCHED).all(), "slots without a token were written"


def _check_close(found, expected, scale):
    """Assert an error within one rounding; terms may cancel, but are hardly larger than the head's largest element."""
    unit = ROUNDING[found.dtype] * 1.01
    smallest = 2.0**-10 * scale if found.dtype == FP8 else 1e-7
    exact = expected.abs().amax(-1, keepdim=True) * 2.0**-21
    off = (found.double() * scale - expected).abs()
    assert (off <= torch.maximum(unit * expected.abs(), torch.tensor(smallest)) + exact).all()


def bits(x):
    return x.contiguous().view(torch.uint8)


def rounded(x, dtype):
    codes = torch.from_numpy(FORMATS[dtype].nearest(x.double().numpy()))
    return codes.to(torch.uint8 if dtype == FP8 else torch.uint16).view(dtype)


def check_elementwise(launcher, device="cpu"):
    """All checks in small shapes, which must detect a bug planted anywhere."""
    check_rms_norm(launcher, BF16, 2, 1000, device)
    check_layer_norm(launcher, BF16, 2, 1000, True, device)
    check_rotation(launcher, BF16, BF16, 80, 5, 2, 16, 5, True, device)
    check_rotation(launcher, BF16, BF16, 80, 5, 2, 16, 5, "own", device)
    check_rotation(launcher, BF16, FP8, 256, 31, 2, 16, 3, False, device)
    check_rotation(launcher, BF16, BF16, 80, 5, 2, 16, 5, "values, too", device)
    check_rotated_queries(launcher, BF16, 80, 5, 5, device)
    for activation in ("silu", "gelu_tanh", "gelu_erf"):
        check_activation(launcher, BF16, 2, 264, activation, True, device)
    for activation in ("relu", "relu2", "xielu"):
        check_activation(launcher, BF16, 2, 264, activation, False, device)
    check_capped_logits(launcher, 2, 300, 30.0, device)
    check_quantized_rows(launcher, BF16, 4, 4104, device)

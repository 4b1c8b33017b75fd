"""The formula of csrc/cpu/experts/route.cpp in numpy, bit for bit, with the exponential of csrc/cpu/isa/isa.h."""

import numpy as np

F32 = np.float32
EXP2 = (1.534580803e-4, 1.339993090e-3, 9.618489072e-3, 5.550328642e-2, 2.402264625e-1, 6.931471825e-1, 1.0)
LOG2_E, LN2_HIGH, LN2_LOW = F32(1.44269504), F32(0.693359375), F32(-2.12194440e-4)


def fma(a, b, c):
    """Rounded once, but where the sum lies next to the middle of two floats."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(F32)


def exp2(x):
    x = np.minimum(F32(127.49), np.maximum(F32(-126.0), x))
    whole = np.rint(x)
    power = np.full_like(x, F32(EXP2[0]))
    for constant in EXP2[1:]:
        power = fma(power, x - whole, F32(constant))
    return (power.view(np.int32) + (whole.astype(np.int32) << 23)).view(F32)


def exp(x):
    x = np.minimum(np.maximum(x, F32(-87.33)), F32(88.37))
    whole = np.rint(x * LOG2_E)
    part = fma(whole, -LN2_LOW, fma(whole, -LN2_HIGH, x))
    return (exp2(part * LOG2_E).view(np.int32) + (whole.astype(np.int32) << 23)).view(F32)


def lanes_added(x):
    """The sum of a vector as rows.h has it: 16 lanes, four accumulators for whole 64, and a tree over the lanes."""
    sums = np.zeros((4, 16), F32)
    whole = len(x) // 64 * 64
    for at in range(0, whole, 64):
        sums += x[at : at + 64].reshape(4, 16)
    for at in range(whole, len(x), 16):
        part = x[at : at + 16]
        sums[0, : len(part)] += part
    lanes = (sums[0] + sums[1]) + (sums[2] + sums[3])
    lanes = lanes[:8] + lanes[8:]
    lanes = lanes[:4] + lanes[4:]
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


def softmax(x):
    powers = exp(x - x.max())
    return powers / lanes_added(powers)


def sigmoid(x):
    return F32(1) / (F32(1) + exp(-x))


def highest(values, count):
    return np.sort(np.argsort(-values, kind="stable")[:count])


def routed(logits, experts, correction):
    """Experts [rows, top_k] ascending, and their weights float32."""
    rows = [_row(row, experts, correction) for row in logits]
    return np.stack([chosen for chosen, _ in rows]), np.stack([weights for _, weights in rows])


def _row(logits, experts, correction):
    if experts.score == "sparse_mixer":
        chosen, weights = _mixed(logits, experts)
    else:
        score = {"softmax": softmax, "sigmoid": sigmoid}
        scores = score[experts.score](logits) if experts.score in score else logits
        choice = scores if experts.groups > 1 or correction is not None else logits
        choice = choice if correction is None else choice + correction
        if experts.groups > 1:
            grouped = choice.reshape(experts.groups, -1)
            counted = 1 if experts.score == "softmax" else 2
            best = highest(np.sort(grouped, 1)[:, ::-1][:, :counted].sum(1), experts.top_groups)
            outside = ~np.isin(np.arange(experts.groups), best)
            choice = np.where(outside[:, None], F32(-np.inf), grouped).ravel()
        chosen = highest(choice, experts.top_k)
        weights = scores[chosen]
        if experts.score == "softmax_of_chosen":
            weights = softmax(weights)
        if experts.score == "sigmoid_of_chosen":
            weights = sigmoid(weights)
    divisor = F32(1)
    if experts.renormalises:
        total = F32(0)
        for weight in weights:
            total += weight
        divisor = total + F32(1e-20)
    return chosen, weights / divisor * F32(experts.scale)


def _mixed(logits, experts):
    left, found = logits.copy(), {}
    for _ in range(experts.top_k):
        best = int(np.argmax(left))
        top = left[best]
        far = (top - logits) / np.maximum(np.abs(logits), top) > F32(2) * F32(experts.jitter)
        found[best] = softmax(np.where(far, F32(-np.inf), left))[best]
        left[best] = -np.inf
    return np.array(sorted(found)), np.array([found[expert] for expert in sorted(found)], F32)

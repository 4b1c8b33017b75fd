"""Bugs to plant in the kernels of recurrent layers: each must make check_recurrent fail.

(file, a text that occurs once, its replacement, the effect)
"""

SCAN = "recurrent/scan.cuh"
CONV, MAMBA2, DELTA = "recurrent/causal_conv.cu", "recurrent/mamba2_scan.cu", "recurrent/gated_delta.cu"
NORM, GATE = "recurrent/gated_norm.cu", "recurrent/sigmoid_gate.cu"

MUTATIONS = [
    # Convolutions.
    (CONV, "j < WIDTH; j++) sum", "j < LAST; j++) sum", "the token's own input is left out"),
    (CONV, "bias = p.bias ? p.bias[channel] : 0.f;", "bias = 0.f;", "no bias"),
    (CONV, "if (ACTIVATES) sum = silu(sum);", "", "no activation"),
    (CONV, "if (p.y_factors) sum *=", "if (false) sum *=", "no factors of results"),
    (CONV, "if (!p.x_factors) return x;", "return x;", "no factors of inputs"),
    (CONV, "return to_float(from_float<SCALAR>(x * to_float(", "return (x * (to_float(", "products are not rounded"),
    (CONV, "token * p.y_stride + channel] =", "token * p.x_stride + channel] =", "results in the inputs' places"),
    (CONV, "const int own = row.first + LAST;", "const int own = row.first;", "a state is read by two blocks"),
    (CONV, "has_first ? max(to, own) : to", "to", "a row's first tokens are left out"),
    (CONV, "if (has_first && row.keeps_state(token))", "if (false)", "states of few tokens are not kept"),
    (CONV, "if (has_first) channel.keep_later(row, stop);", "", "states of later tokens are not kept"),
    (CONV, "input(last - LAST + 1 + j)", "input(last - LAST + j)", "states one token early"),
    (CONV, "token - LAST + j);", "token - WIDTH + j);", "earlier inputs one token early"),
    (CONV, "      token = last + 1;\n", "      token = row.end;\n", "only the first later block keeps its state"),
    (CONV, "low = middle;\n", "low = high;\n", "the row of a span is wrong"),
    (CONV, "if (number >= p.channels) return;", "", "channels beyond the last"),
    (CONV, "min(from + p.span, p.tokens)", "from + 1", "one token of each span"),
    # Scans.
    (SCAN, "i * 16 + part * 4 + j; n < DEPTH", "i * 16 + part * 4 + j; true", "numbers beyond the last"),
    (SCAN, "head(blockIdx.x / slices_of(of_head))", "head(0)", "the first head for all"),
    # Mamba 2.
    (MAMBA2, "output.head / (p.heads / p.groups) * DEPTH", "0", "the first group for all"),
    (MAMBA2, "b + int64_t(p.groups) * DEPTH", "b", "b for c"),
    (MAMBA2, "dt < p.least_dt ? p.least_dt : ", "", "no lower limit"),
    (MAMBA2, "dt > p.greatest_dt ? p.greatest_dt : dt", "dt", "no upper limit"),
    (MAMBA2, "raw + p.dt_bias[output.head]", "raw", "no bias of steps"),
    (
        MAMBA2,
        "exponential(limited * p.a[output.head])",
        "exponential(limited * p.a[0])",
        "the first head's decay for all",
    ),
    (MAMBA2, "fmaf(x, d, sum_of(chains))", "sum_of(chains)", "no input beside the state"),
    (MAMBA2, "fmaf(decay, state[i][j], input * b[j])", "fmaf(input, b[j], state[i][j])", "nothing decays"),
    # The gated delta rule.
    (DELTA, "* factor * scale;", "* factor;", "queries are not scaled"),
    (DELTA, "warp_sum(squares) + eps", "squares + eps", "norms of each lane"),
    (DELTA, "output.head / (p.heads / p.key_heads) * DEPTH", "0", "the first key head for all"),
    (DELTA, "i * p.x_stride + of_keys, p.eps", "i * p.x_stride, p.eps", "queries for keys"),
    (DELTA, "x + 2 * of_keys + int64_t", "x + of_keys + int64_t", "keys for values"),
    (DELTA, "(value - decay * sum_of(chains))", "(value - sum_of(chains))", "the held value without decay"),
    (DELTA, "* inputs.factor[slot];", ";", "no beta"),
    (DELTA, "fmaf(change, k[j], decay * state[i][j])", "fmaf(change, k[j], state[i][j])", "nothing decays"),
    (DELTA, "for (int j = 0; j < 4; j++) chains[j] = 0.f;", "", "the first sum in the second"),
    # The norm and the gate.
    (NORM, "/ GROUP + p.eps)", "/ GROUP)", "eps left out"),
    (NORM, "p.weight[first + at]", "p.weight[at]", "the first group's weights for all"),
    (NORM, "if (!GATES_LAST) values", "if (GATES_LAST) values", "the gate on the other side of the sum"),
    (NORM, "if (GATES_LAST) normed", "if (false) normed", "no gate"),
    (
        NORM,
        "squares = fmaf(values[i], values[i], squares);",
        "squares = values[i] * values[i];",
        "one element of each thread",
    ),
    (GATE, "if (at >= p.size) return;", "", "elements beyond the last"),
    (GATE, "exponential(-gate)", "exponential(gate)", "a wrong sign"),
    (GATE, "row * p.gate_stride", "row * p.y_stride", "gates taken to be adjacent"),
]

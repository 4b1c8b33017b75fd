"""Bugs to plant in the sampler's kernels: each must make check_sampler fail.

(file, a text that occurs once, its replacement, what is wrong then)
"""

HEADER = "sampler/sampler.cuh"
MUTATIONS = [
    (HEADER, "logit + 0.f", "logit", "-0 before 0"),
    (
        HEADER,
        "return bits >> 31 ? ~bits",
        "return bits >> 31 ? bits",
        "negative logits in the wrong order",
    ),
    (HEADER, "return x < log_min_p ? 0", "return x <= log_min_p ? 0", "what is exactly min-p dropped"),
    (HEADER, "min(from + SLICE, vocab)", "from + SLICE", "reads beyond the row"),
    (HEADER, "start += AT_ONCE * THREADS", "start += SLICE", "only the first tokens of a slice"),
    (HEADER, "if (int(threadIdx.x % 32) >= distance) x += lower;", "x += lower;", "a lane adds its own"),
    (
        HEADER,
        "  __syncthreads();  // the sums of an earlier",
        "  // the sums of an earlier",
        "sums overwritten",
    ),
    (HEADER, "if (i < warp) before", "if (i <= warp) before", "its own warp before it"),
    (HEADER, "if (scratch.place) *finished = 0;", "", "the next launch never ends a row"),
    ("sampler/scan.cu", "| ~uint32_t(token)", "| uint32_t(token)", "the highest id among equals"),
    ("sampler/scan.cu", "round < 10", "round < 9", "other random numbers"),
    ("sampler/scan.cu", "c1 >> 6) << 11", "c1 >> 6) << 10", "half of the distribution"),
    ("sampler/scan.cu", "may_be_masked && key_of", "key_of", "-infinity not reported"),
    ("sampler/scan.cu", " || best >> 32 == KEY_OF_MASKED", "", "a token where none may be chosen"),
    ("sampler/scan.cu", "  row.position++;\n", "", "one random number for all steps"),
    ("sampler/cut.cu", "    histogram[first - i] = 0;\n", "", "counts of the level before"),
    ("sampler/cut.cu", "+ (old + low < old)", "", "the carry lost"),
    (
        "sampler/cut.cu",
        "  __syncthreads();  // everyone has read",
        "  // everyone has read",
        "state changed while it is read",
    ),
    ("sampler/cut.cu", "after >= goal", "after > goal", "one token more where the goal is met exactly"),
    ("sampler/cut.cu", "(ties + each - 1) / each", "ties / each", "the token that reaches top-p dropped"),
    ("sampler/cut.cu", "if (has_ties && ", "if (false && ", "top-k's ties without mass"),
    ("sampler/cut.cu", "if (key <= above || ", "if (", "top-p of what top-k dropped"),
    ("sampler/cut.cu", "  __syncthreads();\n  each_token(", "  each_token(", "a histogram not yet zero"),
    ("sampler/draw.cu", "key == cut ? ONE_TIE : 0", "key == cut ? weights(part[i]) : 0", "all ties stay"),
    (
        "sampler/draw.cu",
        "threadIdx.x % 32) - 1;\n  uint64_t left",
        "threadIdx.x % 32);\n  uint64_t left",
        "the wrong lanes before",
    ),
    ("sampler/draw.cu", "scratch.left = target - before", "scratch.left = target", "mass counted from the first tile"),
    ("sampler/draw.cu", "    ties += __popc(tied);\n", "", "ties of the first 32 tokens counted again"),
    (
        "sampler/draw.cu",
        "  sum_tiles(p, logits, weights, state.cut_key",
        "  sum_tiles(p, logits, weights, 0",
        "the cut forgotten",
    ),
    ("sampler/draw.cu", "return a1 * b1 +", "return a0 * b1 +", "another product"),
    ("sampler/rank.cu", "token < chosen", "token <= chosen", "a token before itself"),
    ("sampler/rank.cu", "atomicAdd(&state.total, total)", "state.total = total", "the mass of one slice"),
    ("sampler/gather.cu", "earlier + __popc(lower) < state.cut_ties", "earlier < state.cut_ties", "too many ties"),
    ("sampler/gather.cu", "    earlier += __popc(ties);\n", "", "ties counted anew"),
    ("sampler/adjust.cu", "logit > 0.f ? logit / a.rep", "logit < 0.f ? logit / a.rep", "repetition rewarded"),
    ("sampler/adjust.cu", "count > 0 ? 1.f", "count > 1 ? 1.f", "presence from the second time on"),
    (
        "sampler/adjust.cu",
        "if (!is_finite(logit)) logits[token] = nothing;\n    else if",
        "if",
        "a masked NaN not reported",
    ),
    ("sampler/adjust.cu", "token / 32] >> token % 32", "token / 32] >> (31 - token % 32)", "bits from the highest"),
    ("sampler/count.cu", ", is_known = 1", "", "a known token listed twice"),
    ("sampler/count.cu", "length + 1;", "length;", "a new token forgotten"),
]

EQUIVALENT = [
    ("sampler/gather.cu", "here ? before : NO_TIES", "before", "visits tiles without ties, in which it lists nothing"),
    ("sampler/draw.cu", "(a0 * b1 >> 32)", "0", "2^-32 of the mass: no number drawn here is so near a border"),
]

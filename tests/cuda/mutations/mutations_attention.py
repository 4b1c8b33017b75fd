"""Bugs to plant in paged attention, one at a time: (file, a text that occurs once, its replacement, the effect).

check_attention must detect each of MUTATIONS; EQUIVALENT ones change no result, for the reason given.
"""

KERNEL, TILES, SOFTMAX = "attention/paged_attention.cu", "attention/tiles.cuh", "attention/softmax.cuh"
SOURCE, VALUES = "attention/source.cuh", "attention/values.cuh"
QUERY, TOTAL = "attention/query.cuh", "attention/total.cuh"
ITEM, EXCHANGE, PLAN, MERGE = "attention/item.cuh", "attention/exchange.cuh", "attention/plan.cu", "attention/merge.cu"

MUTATIONS = (
    # Races and copies.
    (
        TILES,
        "__syncthreads();  // all copies have arrived, and all threads are done with the slot that is filled next",
        "",
        "no barrier between copies and their use",
    ),
    (
        TILES,
        "if (RING > 1) copy_wait<PENDING>();",
        "if (RING > 1) copy_wait<PENDING + 1>();",
        "one wait too few",
    ),
    (TILES, "filled_ = 0, read_ = 0", "filled_ = 1, read_ = 0", "slots are read before they are filled"),
    (
        TILES,
        "for (int i = 0; i < RING - 1; i++) {",
        "for (int i = 0; i < RING; i++) {",
        "prefetch into the live slot",
    ),
    (
        TILES,
        "      copy_wait<0>();\n      __syncthreads();\n",
        "      __syncthreads();\n",
        "the only slot is read before it is filled",
    ),
    (
        TILES,
        "      copy_wait<0>();\n      __syncthreads();\n",
        "      copy_wait<0>();\n",
        "copies of others into the only slot are read early",
    ),
    (TILES, "    else __syncthreads();", "", "no barrier after widening by the whole block"),
    (
        KERNEL,
        "    __syncthreads();  // the next item overwrites memory that other warps may still read",
        "",
        "no barrier between items",
    ),
    (
        KERNEL,
        "  copy_wait<PENDING>();\n  __syncthreads();\n",
        "  __syncthreads();\n",
        "queries are read before they came",
    ),
    (
        EXCHANGE,
        "publish(highs_, i, share_, high[i]);\n      __syncthreads();",
        "publish(highs_, i, share_, high[i]);",
        "highs are read too early",
    ),
    (EXCHANGE, "mine[i][s]);\n      __syncthreads();", "mine[i][s]);", "totals are read too early"),
    (
        TILES,
        "__syncthreads();  // before the first copies by the new places",
        "",
        "copies by no places",
    ),
    (
        TILES,
        "if (!asks_values_) places_.publish();\n    if",
        "if",
        "the first places for all tiles",
    ),
    (SOURCE, "turn_ ^= TILE_KEYS;", "", "places are replaced while warps copy by them"),
    # Keys that are read, and keys that are attended to.
    (
        SOURCE,
        "key_ >= source_.from && key_ < source_.to;",
        "key_ >= source_.from;",
        "keys past the end: poisoned blocks",
    ),
    (SOURCE, "key_ >= source_.from && key_ < source_.to;", "key_ < source_.to;", "keys before every window are read"),
    (ITEM, "{low, uint32_t(last + 1 - low)}", "{low, uint32_t(last - low)}", "a token does not see itself"),
    (ITEM, "{low, uint32_t(last + 1 - low)}", "{low, uint32_t(last + 2 - low)}", "a token sees the next"),
    (ITEM, "max(0, last - window + 1) : 0", "max(0, last - window) : 0", "a window one too long"),
    (ITEM, "last / ATTENTION_CHUNK *", "(last + 1) / ATTENTION_CHUNK *", "an attention chunk ends early"),
    (
        PLAN,
        "return position / p.attention_chunk *",
        "return (position + 1) / p.attention_chunk *",
        "keys are not visited",
    ),
    (PLAN, "if (p.attention_chunk > 0) return", "if (false) return", "keys of earlier attention chunks are visited"),
    (
        KERNEL,
        "first_key + WARP_KEYS - 1 <= first &&",
        "first_key + WARP_KEYS - 1 <= last &&",
        "no mask in the first row",
    ),
    (
        KERNEL,
        "first_key + t * 8 + item.lane % 4 * 2 + e)",
        "first_key + t * 8 + item.lane % 4 * 2)",
        "a mask for pairs of keys",
    ),
    (
        KERNEL,
        "item.sight(last).sees(first_key)",
        "item.sight(first).sees(first_key)",
        "no mask where the last row begins an attention chunk",
    ),
    (KERNEL, "float(key + t * 8 + e)", "float(key + t * 8)", "ALiBi by pairs of keys"),
    (
        KERNEL,
        "item.lane % 4 * 2 - item.position(row)",
        "item.lane % 4 * 2 - item.position(row) / 512 * 512",
        "ALiBi from the start of a split, which only a sink shows",
    ),
    (KERNEL, "if (item.p.cap == 0.f) score *=", "score *=", "capped scores scaled again"),
    (KERNEL, "item.p.slopes[item.head(row)]", "item.p.slopes[0]", "the slope of the first head"),
    (ITEM, "IS_BIDIRECTIONAL ? p.kv_lens[work.request] - 1 :", "", "no key after the token's own is seen"),
    (PLAN, "p.is_bidirectional ? p.kv_lens[index] :", "", "keys after the last row of a tile are not read"),
    (KERNEL, "if (row >= item.work.rows) continue;", "", "rows of others are written"),
    # Fragments.
    (VALUES, "load_matrices_transposed(b,", "load_matrices(b,", "values that are not transposed"),
    (
        QUERY,
        "multiply_add<SCALAR>(scores[2 * t], a, b[0], b[1])",
        "multiply_add<SCALAR>(scores[2 * t], a, b[0], b[2])",
        "wrong matrices",
    ),
    (VALUES, "2 * s + i / 2][i % 2 * 2 + 1]", "2 * s + i % 2][i / 2 * 2 + 1]", "weights of other rows"),
    (KERNEL, "dim = pair * 16 + d % 2 * 8", "dim = pair * 16 + (1 - d % 2) * 8", "halves of a pair change places"),
    (
        SOURCE,
        "constexpr int STRIDE = (HEAD_DIM / 8 | 1) * 16; ",
        "constexpr int STRIDE = HEAD_DIM / 8 * 16; ",
        "rows are not where they were copied",
    ),
    # Softmax, splits and their order.
    (SOFTMAX, "high == MASKED ? 0.f : high", "high", "a row that sees no key yet weighs masked ones"),
    (SOFTMAX, "sum += scores[t][e] = exp2_approx", "scores[t][e] = exp2_approx", "totals are never added"),
    (SOFTMAX, "total[i][s] = fmaf(total[i][s], keep[i], sum);", "total[i][s] += sum;", "older totals do not shrink"),
    (SOFTMAX, "if (sink) total +=", "if (sink && total > 4.f) total +=", "sinks are forgotten"),
    (SOFTMAX, "*sink * LOG2_E", "*sink * to_log2", "sinks are scaled like scores"),
    (KERNEL, "p.sinks + item.head(row)", "p.sinks", "the sink of the first head"),
    (MERGE, "p.sinks ? p.sinks + head", "p.sinks ? p.sinks", "the sink of the first head, where splits are joined"),
    (KERNEL, "key % SPLIT_KEYS == 0 && key > first_tile", "false", "prefill does not close splits: other bits"),
    (
        TOTAL,
        "    softmax = Softmax<MINE>{};\n    empty = false;",
        "    empty = false;",
        "a split starts with the sums of the one before",
    ),
    (TOTAL, "part[d][3] = shares[1].join(old.w, part[d][3])", "part[d][3] += old.w", "an element is not scaled"),
    (
        EXCHANGE,
        "((all[i][0] + all[i][1]) + all[i][2]) + all[i][3]",
        "(all[i][0] + all[i][1]) + all[i][2]",
        "a step is forgotten",
    ),
    (MERGE, "split < merge.splits; split++", "split < merge.splits - 1; split++", "the last split is forgotten"),
    (
        MERGE,
        "merge.slot + split * merge.rows + row)",
        "merge.slot + (merge.splits - 1 - split) * merge.rows + row)",
        "splits in another order",
    ),
    # The plan.
    (PLAN, "r.slot + first_row * r.splits + split * rows", "r.slot + split * rows", "tiles of a request share slots"),
    (PLAN, "return before + sum - x;", "return before + sum;", "work begins after itself"),
    (
        PLAN,
        "r.past + first_row / p.group);",
        "r.past + (first_row + rows - 1) / p.group);",
        "the window of the last row",
    ),
    (
        PLAN,
        "(first_row + rows - 1) / p.group + 1;",
        "(first_row + rows - 1) / p.group;",
        "the last key is left out",
    ),
)

EQUIVALENT = (
    (
        TILES,
        "__syncwarp();",
        ";",
        "lanes that widened meet at the next matrix load, and no weak memory order is emulated",
    ),
    (
        KERNEL,
        "item.work.slot >= 0 && item.share == 0 && item",
        "item.work.slot >= 0 && item",
        "all warps that share rows write the same",
    ),
)

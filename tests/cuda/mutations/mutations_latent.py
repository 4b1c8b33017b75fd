"""Bugs to plant in the kernels of latent attention: each must make check_latent fail.

(file, a text that occurs once, its replacement, the effect). EQUIVALENT ones change no result, for the reason given.
"""

KERNEL, ROTATE = "latent/latent_attention.cu", "latent/rotate.cuh"
CACHE, HEADS = "latent/cache_latents.cu", "latent/rotate_heads.cu"
VALUES, QUERY, TOTAL = "attention/values.cuh", "attention/query.cuh", "attention/total.cuh"

MUTATIONS = [
    # Tiles.
    (KERNEL, "    if (STAGES > 1) copy_wait<0>();\n", "", "a tile is read before it came"),
    (
        KERNEL,
        "      copy_wait<0>();\n      __syncthreads();\n",
        "      __syncthreads();\n",
        "the only tile is read early",
    ),
    (
        KERNEL,
        "      copy_wait<0>();\n      __syncthreads();\n",
        "      copy_wait<0>();\n",
        "copies of others are read early",
    ),
    (
        KERNEL,
        "    __syncthreads();  // all threads are done",
        "    // all threads are done",
        "a tile is overwritten while it is read",
    ),
    (KERNEL, "next_key_ += TILE_KEYS)", "next_key_ += TILE_KEYS / 2)", "keys twice"),
    (KERNEL, "next_key_ < source_.to", "next_key_ + TILE_KEYS < source_.to", "the last tile is not copied"),
    (KERNEL, "if (STAGES > 1) filled_ = !filled_;", "", "two tiles in one place"),
    # Queries, scores and weights.
    (
        QUERY,
        "item.lane % 16) * STRIDE + item.lane / 16 * 16;",
        "item.lane % 16) * STRIDE;",
        "half of the dims",
    ),
    (QUERY, "item.lane % 8 + item.lane / 16 * 8;", "item.lane % 16;", "keys in another order"),
    (KERNEL, "item.lane % 4 * 2 + e)) scores", "item.lane % 4 * 2)) scores", "a mask for pairs of keys"),
    (KERNEL, "first_key + item.share * WARP_KEYS + t * 8", "first_key + t * 8", "masks of the first warp for all"),
    (VALUES, "exchange.join_highs(high);", "", "each warp subtracts another score"),
    (VALUES, "  exchange.share_weights(weights);", "", "weights of other warps are missing"),
    (KERNEL, "if (SHARING > 1) __syncthreads();", "", "weights are read before they are written"),
    # Sums.
    (VALUES, "sums[d][e] *= keep[e / 2];", "", "earlier sums keep their scale"),
    (
        KERNEL,
        "pair = item.share + d / 2 * SHARING, dim",
        "pair = item.share * WARP_PAIRS<VALUE_PAIRS> + d / 2, dim",
        "dims in another order",
    ),
    (VALUES, "sums[2 * d + 1], a, b[2], b[3]", "sums[2 * d + 1], a, b[2], b[2]", "half of the keys twice"),
    (VALUES, "step * 16 * STRIDE + pair * 32", "step * 16 * STRIDE", "the first dims for all"),
    (TOTAL, "    softmax = Softmax<MINE>{};\n  }", "  }", "totals continue the split before"),
    (TOTAL, "softmax.add_lanes();", "", "a quarter of each total"),
    (KERNEL, "key % SPLIT_KEYS == 0 && key > first_tile", "false", "splits are not joined"),
    (KERNEL, "    if (row >= item.work.rows) continue;\n", "", "rows beyond the last are written"),
    (KERNEL, "out += in_request % GROUP * VALUE_DIM;", "out += in_request % GROUP * HEAD_DIM;", "heads too far apart"),
    (
        KERNEL,
        "(item.first_token + in_request / GROUP)",
        "(item.first_token + row / GROUP)",
        "all items write the first rows",
    ),
    (KERNEL, "p.part_sums + slot * VALUE_DIM", "p.part_sums + slot * HEAD_DIM", "parts where merge does not read them"),
    (
        KERNEL,
        "item.row_warp * 16 < item.work.rows;",
        "item.row_warp * 16 + 16 < item.work.rows;",
        "warps with few rows do nothing",
    ),
    # Rows.
    (ROTATE, "x * cosine[e] - y * sine[e]", "x * cosine[e] + y * sine[e]", "a wrong sign"),
    (ROTATE, "load8<float>(sine, angles, HALF_PACKS + pack);", "load8<float>(sine, angles, pack);", "cosine for sine"),
    (ROTATE, "store8<SCALAR>(to, HALF_PACKS + pack, high);", "", "half of the elements"),
    (CACHE, "if (slot < 0) return;", "if (slot < -1) return;", "padding written"),
    (CACHE, "/ KV_RANK + p.eps)", "/ KV_RANK)", "eps left out"),
    (CACHE, "p.weight[pack * 8 + e]", "p.weight[pack + e]", "weights of others"),
    (CACHE, "token * p.stride;", "token * (KV_RANK + ROPE_DIM);", "tokens taken to be adjacent"),
    (CACHE, "p.positions[token] * ROPE_DIM", "token * ROPE_DIM", "index for position"),
    (CACHE, "sum = fmaf(x[e], x[e], sum)", "sum = fmaf(x[e], x[e], 0.f)", "sum lost"),
    (CACHE, "rotate_pack(out + KV_RANK,", "rotate_pack(out,", "the key over the latent"),
    (HEADS, "if (head >= p.heads) return;", "", "heads beyond the last"),
    (HEADS, "at % HALF_PACKS", "0", "the first pack for all"),
    (HEADS, "p.positions[token] * ROPE_DIM", "token * ROPE_DIM", "index for position"),
    (HEADS, "head * p.query_head_stride", "head * p.out_head_stride", "heads of queries too far apart"),
]

EQUIVALENT = [
    (
        KERNEL,
        "    __syncthreads();  // the next item",
        "    // the next item",
        "with SHARING above 1 totals are joined behind a barrier, after the last use of queries and tiles",
    ),
    (
        TOTAL,
        "part[d][e]), part[d][e] = 0.f;",
        "part[d][e]);",
        "a split's first weights multiply earlier sums by 0, if they are finite",
    ),
]

"""Bugs to plant in the kernels of LoRA adapters: each must make check_lora fail.

(file, a text that occurs once, its replacement, the effect)
"""

HEADER, SHRINK, LOOK_UP, EXPAND = "lora/lora.cuh", "lora/shrink.cu", "lora/look_up.cu", "lora/expand.cu"

MUTATIONS = [
    (HEADER, "p.groups + 1 + 3 * index;", "p.groups + 1;", "the first group for all"),
    (HEADER, "int64_t(p.rows) + group[1]", "int64_t(p.rows)", "the first rows for all"),
    (SHRINK, "at = lane; at < packs; at += 32", "at = lane; at < 32; at += 32", "only the first inputs"),
    (SHRINK, "group.rows[m] * (p.x_stride / 8)", "m * (p.x_stride / 8)", "rows as they lie"),
    (SHRINK, "int64_t(rank) * packs + at", "at", "the first rank for all"),
    (SHRINK, "* p.parts + part) * p.max_rank + rank] = total", "* p.parts) * p.max_rank + rank] = total", "one part"),
    (SHRINK, "if (rank >= lora.rank) return;", "if (rank > 3) return;", "only the first ranks"),
    (LOOK_UP, "lora.a)[id * lora.rank + rank]", "lora.a)[row * lora.rank + rank]", "the row for the token"),
    (LOOK_UP, "p.table[group.place]", "p.table[1]", "the first adapter for all"),
    (EXPAND, "lora.scale * sum", "sum", "no scale"),
    (EXPAND, "share < p.shares", "share < 1", "only the first share"),
    (EXPAND, "int64_t(output / PANEL) * lora.rank * PANEL", "0", "the first panel for all"),
    (EXPAND, "p.starts[part] + output;", "output;", "the first part's outputs"),
    (EXPAND, "rank < lora.rank; rank++", "rank < 3; rank++", "only three ranks"),
    (EXPAND, "group.rows[m] * p.y_stride", "m * p.y_stride", "rows as they lie"),
    (EXPAND, "to_float(here) + sums[m]", "sums[m]", "without the product"),
    (EXPAND, "  __syncthreads();\n", "", "factors are read before they are written"),
]

// A x for the rows of a step. The order of its sums: lora.cpp.
#pragma once
#include "lora/items.h"

// out[r] = x * a[r], for RANK_BLOCK rows of a. AHEAD: as many elements are prefetched from `next` on.
template <bool AHEAD, class Element> void dots(const Element* x, const Element* a, int64_t stride, int inputs, const Element* next, float* out) {
  Wide sums[RANK_BLOCK];
  int at = 0;
  if constexpr (std::is_same_v<Element, Bfloat16>)
    for (; at + 2 * WIDE <= inputs; at += 2 * WIDE) {
      if constexpr (AHEAD) prefetch_elements<2 * WIDE * RANK_BLOCK>(next + at * RANK_BLOCK);
      EACH(v, WIDE_VECTORS) {
        const auto factor = Bf16::two_vectors(&x[at + v * LANES].bits);
        EACH(r, RANK_BLOCK)
          sums[r].part[v] = Bf16::dot(sums[r].part[v], Bf16::two_vectors(&a[r * stride + at + v * LANES].bits), factor);
      }
    }
  for (; at + WIDE <= inputs; at += WIDE) {
    if constexpr (AHEAD) prefetch_elements<WIDE * RANK_BLOCK>(next + at * RANK_BLOCK);
    EACH(v, WIDE_VECTORS) {
      const F32 factor = get(x + at + v * LANES, LANES);
      EACH(r, RANK_BLOCK)
        sums[r].part[v] = add_product(sums[r].part[v], factor, get(a + r * stride + at + v * LANES, LANES));
    }
  }
  if (at < inputs)
    EACH(v, WIDE_VECTORS) {  // zeros past the end, in all lanes of every instruction set
      const int from = at + v * LANES, n = std::clamp(inputs - from, 0, LANES);
      const F32 factor = get(x + from, n);
      EACH(r, RANK_BLOCK) sums[r].part[v] = add_product(sums[r].part[v], factor, get(a + r * stride + from, n));
    }
  EACH(r, RANK_BLOCK) out[r] = sum(sums[r]);
}

template <bool AHEAD, class Element> void shrink_row(const LoraParams& p, const Element* x, const Element* a, const Element* next, float* sums) {
  const int inputs = p.inputs / p.segments;
  float parts[4][RANK_BLOCK];
  for (int s = 0; s < p.segments; s++) dots<AHEAD>(x + s * inputs, a + s * inputs, p.inputs, inputs, next + s * inputs * RANK_BLOCK, parts[s]);
  EACH(r, RANK_BLOCK) {
    if (p.segments == 1) sums[r] = parts[0][r];
    else if (p.segments == 2) sums[r] = parts[0][r] + parts[1][r];
    else sums[r] = (parts[0][r] + parts[1][r]) + (parts[2][r] + parts[3][r]);
  }
}

// A x in items of RANK_BLOCK rows of a part's A for the rows of a group.
template <class Element> struct Shrink {
  const LoraParams p;
  const Groups groups{p};
  const int blocks_of_part = p.max_rank / RANK_BLOCK, blocks = p.parts * blocks_of_part, items = groups.count * blocks;

  Item<Element> at(int item) const {
    const Group& group = groups.of[item / blocks];
    const int part = item % blocks / blocks_of_part, rank = item % blocks_of_part * RANK_BLOCK;
    const LoraPart& lora = p.table[group.place * p.parts + part];
    return {group, part, rank, lora, rank < lora.rank ? (const Element*)lora.a + (int64_t)rank * p.inputs : nullptr};
  }

  template <bool AHEAD> void compute(const Item<Element>& item, const Element* next) const {
    for (int m = 0; m < item.group.count; m++) {
      const int64_t row = groups.rows[item.group.first + m];
      float* sums = p.sums + (row * p.parts + item.part) * p.max_rank + item.first;
      shrink_row<AHEAD>(p, (const Element*)p.x + row * p.x_stride, item.matrix, next, sums);
    }
  }

  Upcoming::Memory memory(int i) const {
    const Item<Element> item = at(i);
    if (!item.matrix) return {};
    return {(const char*)item.matrix, (int64_t)RANK_BLOCK * p.inputs * (int64_t)sizeof(Element)};
  }
  void compute_early(int i) const {
    if (const Item<Element> item = at(i); item.matrix) compute<false>(item, nullptr);
  }
};

// B (A x) for the rows of a step. The order of its sums: lora.cpp.
#pragma once
#include <bit>

#include "lora/items.h"

inline float sum_of(const float* part, int64_t stride, int count) {
  if (count == 1) return *part;
  const int half = (int)std::bit_floor((unsigned)count - 1);
  return sum_of(part, stride, half) + sum_of(part + half * stride, stride, count - half);
}

// Two vectors at p. Those of bfloat16 are its even elements, then the odd ones: widening them takes one operation each.
template <class Element> void get_two(const Element* p, F32& x, F32& y) {
  if constexpr (std::is_same_v<Element, Bfloat16>) {
    const I32 words = load_words(p);
    x = (F32)even_half(words), y = (F32)odd_half(words);
  } else x = get(p, LANES), y = get(p + LANES, LANES);
}

// done(column, lanes, factors[rank] * the panel b), of `width` columns. AHEAD: as many elements are prefetched from `next` on.
template <bool AHEAD, class Element, class Done> void expand_row(const Element* b, const Element* next, const float* factors, int rank, int width, Done done) {
  constexpr int VECTORS = PANEL / LANES, HALF = VECTORS > 8 ? 8 : VECTORS;  // accumulators that fit into registers
  for (int from = 0; from < VECTORS && from * LANES < width; from += HALF) {
    F32 sums[HALF] = {};
    for (int r = 0; r < rank; r++) {
      const F32 factor = splat(factors[r]);
      if (AHEAD && !from) prefetch_elements<PANEL>(next + r * PANEL);
      EACH(pair, HALF / 2) {
        F32 two[2];
        get_two(b + r * PANEL + (from + 2 * pair) * LANES, two[0], two[1]);
        EACH(i, 2) sums[2 * pair + i] = add_product(sums[2 * pair + i], factor, two[i]);
      }
    }
    if constexpr (std::is_same_v<Element, Bfloat16>) EACH(pair, HALF / 2) alternate(sums[2 * pair], sums[2 * pair + 1]);
    EACH(v, HALF) {
      const int at = (from + v) * LANES, n = std::min(LANES, width - at);
      if (n > 0) done(at, n, sums[v]);
    }
  }
}

// factors[row of the group][rank] = scale * A x.
template <class Element> void make_factors(const LoraParams& p, const Groups& groups, const Item<Element>& item, float (&factors)[GROUP_ROWS][MAX_RANK]) {
  const int64_t stride = (int64_t)p.rows * p.parts * p.max_rank;
  for (int m = 0; m < item.group.count; m++) {
    const float* sums = p.sums + ((int64_t)groups.rows[item.group.first + m] * p.parts + item.part) * p.max_rank;
    for (int r = 0; r < item.lora.rank; r++) factors[m][r] = item.lora.scale * sum_of(sums + r, stride, p.shares);
  }
}

// B (A x) in items of CHUNK outputs of a part for the rows of a group.
template <class Element> struct Expand {
  static constexpr int CHUNK = CHUNK_PANELS * PANEL;
  const LoraParams p;
  const Groups groups{p};
  const int chunks = chunks_before(p.parts), items = groups.count * chunks;

  int outputs_of(int part) const { return p.starts[part + 1] - p.starts[part]; }
  int chunks_of(int part) const { return (outputs_of(part) + CHUNK - 1) / CHUNK; }
  int chunks_before(int part) const { return part ? chunks_before(part - 1) + chunks_of(part - 1) : 0; }
  int64_t outputs() const { return p.starts[p.parts]; }

  Item<Element> at(int item) const {
    const Group& group = groups.of[item / chunks];
    int chunk = item % chunks, part = 0;
    while (chunk >= chunks_of(part)) chunk -= chunks_of(part++);
    const LoraPart& lora = p.table[group.place * p.parts + part];
    return {group, part, chunk * CHUNK, lora, lora.rank ? (const Element*)lora.b + (int64_t)chunk * CHUNK * lora.rank : nullptr};
  }

  int width(const Item<Element>& item) const { return std::min(CHUNK, outputs_of(item.part) - item.first); }
  int64_t row(const Item<Element>& item, int m) const { return groups.rows[item.group.first + m]; }

  // done(row of the group, column of the item, lanes, sums).
  template <bool AHEAD, class Done>
  void compute(const Item<Element>& item, const Element* next, const float (&factors)[GROUP_ROWS][MAX_RANK], Done done) const {
    const int rank = item.lora.rank;
    for (int first = 0; first < width(item); first += PANEL)
      for (int m = 0; m < item.group.count; m++)
        expand_row<AHEAD>(item.matrix + (int64_t)first * rank, AHEAD ? next + (int64_t)first * rank : nullptr, factors[m], rank, std::min(PANEL, width(item) - first),
                   [&](int c, int lanes, const F32& sums) { done(m, first + c, lanes, sums); });
  }

  // A group of more rows has as much arithmetic as memory to wait for.
  bool may_be_early(const Item<Element>& item) const { return item.matrix && p.early && item.group.count <= MAX_EARLY_GROUP_ROWS; }
  float* early(const Item<Element>& item, int m) const { return p.early + row(item, m) * outputs() + p.starts[item.part] + item.first; }

  Upcoming::Memory memory(int i) const {
    const Item<Element> item = at(i);
    if (!may_be_early(item)) return {};
    return {(const char*)item.matrix, ((int64_t)width(item) + PANEL - 1) / PANEL * PANEL * item.lora.rank * (int64_t)sizeof(Element)};
  }
  void compute_early(int i) const {
    const Item<Element> item = at(i);
    if (!may_be_early(item)) return;
    alignas(64) float factors[GROUP_ROWS][MAX_RANK];
    make_factors(p, groups, item, factors);
    compute<false>(item, nullptr, factors, [&](int m, int c, int lanes, const F32& sums) { put(early(item, m) + c, sums, lanes); });
  }
};

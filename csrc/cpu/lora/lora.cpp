// lora: y += scale * B (A x), of an adapter for each row: shrink computes A x, expand the rest. A row without an adapter is
// not touched.
//
// Algorithm  all sums are float. An element of A x: 16 lanes over the inputs of each segment, then the segments (segments.h).
//            With bfloat16, A x uses the dot of tile.h on words of elements i and i + 16, which a lane adds one after the
//            other anyway. An element of B (A x): the ranks in order, each by one fused product, from 0; then it is added
//            to y, which is rounded once more. Both are a function of the row alone
// Shapes     lora.h
// Tile       shrink: RANK_BLOCK rows of A by the rows of a group, one after the other; expand: a panel of 64 outputs likewise
// Floor      decode: each adapter's weights are read once: for 32 adapters of rank 16 of a model with 28 layers of 1024 and
//            3072, 640 MB; a prompt: 2 * rank * (inputs + outputs) flop per token and projection
#include "lora/lora.h"

#include <algorithm>
#include <bit>

#include "elements.h"
#include "pool.h"
#include "tiles/tile.h"

namespace {

constexpr int RANK_BLOCK = 4, GROUP_ROWS = 16, MAX_RANK = 256;
constexpr int CHUNK_PANELS = 4;  // of the outputs, per item

struct Group {
  int32_t place, first, count;
};

struct Groups {
  const Group* of;
  const int32_t* rows;
  int count;

  explicit Groups(const LoraParams& p)
      : of((const Group*)(p.groups + 1)), rows(p.groups + 1 + 3 * (int64_t)p.rows), count(p.groups[0]) {}
};

template <int COUNT, class Element> void prefetch_elements(const Element* p) {
  EACH(line, (int)(COUNT * sizeof(Element) / 64)) prefetch<1>((const char*)p + line * 64);
}

// out[r] = x * a[r], for RANK_BLOCK rows of a. As many elements are prefetched from `next` on.
template <class Element> void dots(const Element* x, const Element* a, int64_t stride, int inputs, const Element* next, float* out) {
  Wide sums[RANK_BLOCK];
  int at = 0;
  if constexpr (std::is_same_v<Element, Bfloat16>)
    for (; at + 2 * WIDE <= inputs; at += 2 * WIDE) {
      prefetch_elements<2 * WIDE * RANK_BLOCK>(next + at * RANK_BLOCK);
      EACH(v, WIDE_VECTORS) {
        const auto factor = Bf16::two_vectors(&x[at + v * LANES].bits);
        EACH(r, RANK_BLOCK)
          sums[r].part[v] = Bf16::dot(sums[r].part[v], Bf16::two_vectors(&a[r * stride + at + v * LANES].bits), factor);
      }
    }
  for (; at + WIDE <= inputs; at += WIDE) {
    prefetch_elements<WIDE * RANK_BLOCK>(next + at * RANK_BLOCK);
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

template <class Element> void shrink_row(const LoraParams& p, const Element* x, const Element* a, const Element* next, float* sums) {
  const int inputs = p.inputs / p.segments;
  float parts[4][RANK_BLOCK];
  for (int s = 0; s < p.segments; s++) dots(x + s * inputs, a + s * inputs, p.inputs, inputs, next + s * inputs * RANK_BLOCK, parts[s]);
  EACH(r, RANK_BLOCK) {
    if (p.segments == 1) sums[r] = parts[0][r];
    else if (p.segments == 2) sums[r] = parts[0][r] + parts[1][r];
    else sums[r] = (parts[0][r] + parts[1][r]) + (parts[2][r] + parts[3][r]);
  }
}

// Items of consecutive memory to one thread, unless there are too few groups.
int grain(const Pool* pool, int groups, int items_of_group) {
  return groups >= ITEMS_PER_THREAD * pool->size() ? items_of_group : 1;
}

// Some ranks of A, or outputs of B, of the adapter of a group.
template <class Element> struct Item {
  const Group& group;
  int part, first;  // rank or output
  const LoraPart& lora;
  const Element* matrix;  // from `first` on; null: there is nothing to compute
};

// The matrix of the next item after `item` that has one; otherwise `last`. A thread mostly takes items in order.
template <class Element, class At> const Element* matrix_after(int item, int items, const Element* last, At at) {
  while (++item < items)
    if (const Element* next = at(item).matrix) return next;
  return last;
}

template <class Element> void shrink(Pool* pool, const LoraParams& p) {
  const Groups groups(p);
  const int blocks = p.parts * p.max_rank / RANK_BLOCK, items = groups.count * blocks;
  const auto at = [&](int item) {
    const Group& group = groups.of[item / blocks];
    const int part = item % blocks * RANK_BLOCK / p.max_rank, rank = item % blocks * RANK_BLOCK % p.max_rank;
    const LoraPart& lora = p.table[group.place * p.parts + part];
    return Item<Element>{group, part, rank, lora, rank < lora.rank ? (const Element*)lora.a + (int64_t)rank * p.inputs : nullptr};
  };
  pool->run_spans(items, grain(pool, groups.count, blocks), [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      const Item<Element> item = at(i);
      if (!item.matrix) continue;
      const Element* next = matrix_after(i, items, item.matrix, at);
      for (int m = 0; m < item.group.count; m++) {
        const int64_t row = groups.rows[item.group.first + m];
        float* sums = p.sums + (row * p.parts + item.part) * p.max_rank + item.first;
        shrink_row(p, (const Element*)p.x + row * p.x_stride, item.matrix, next, sums);
      }
    }
  });
}

float sum_of(const float* part, int64_t stride, int count) {
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

// y[0..width) += factors[rank] * the panel b. As many elements are prefetched from `next` on.
template <class Element, class Y> void expand_row(const Element* b, const Element* next, const float* factors, int rank, int width, Y* y) {
  constexpr int VECTORS = PANEL / LANES, HALF = VECTORS > 8 ? 8 : VECTORS;  // accumulators that fit into registers
  for (int from = 0; from < VECTORS && from * LANES < width; from += HALF) {
    F32 sums[HALF] = {};
    for (int r = 0; r < rank; r++) {
      const F32 factor = splat(factors[r]);
      if (!from) prefetch_elements<PANEL>(next + r * PANEL);
      EACH(pair, HALF / 2) {
        F32 two[2];
        get_two(b + r * PANEL + (from + 2 * pair) * LANES, two[0], two[1]);
        EACH(i, 2) sums[2 * pair + i] = add_product(sums[2 * pair + i], factor, two[i]);
      }
    }
    if constexpr (std::is_same_v<Element, Bfloat16>) EACH(pair, HALF / 2) alternate(sums[2 * pair], sums[2 * pair + 1]);
    EACH(v, HALF) {
      const int at = (from + v) * LANES, n = std::min(LANES, width - at);
      if (n > 0) put(y + at, get(y + at, n) + sums[v], n);
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

template <class Element, class Y> void expand(Pool* pool, const LoraParams& p) {
  const Groups groups(p);
  constexpr int CHUNK = CHUNK_PANELS * PANEL;
  const auto outputs_of = [&](int part) { return p.starts[part + 1] - p.starts[part]; };
  const auto chunks_of = [&](int part) { return (outputs_of(part) + CHUNK - 1) / CHUNK; };
  int chunks = 0;
  for (int part = 0; part < p.parts; part++) chunks += chunks_of(part);
  const auto at = [&](int item) {
    const Group& group = groups.of[item / chunks];
    int chunk = item % chunks, part = 0;
    while (chunk >= chunks_of(part)) chunk -= chunks_of(part++);
    const LoraPart& lora = p.table[group.place * p.parts + part];
    return Item<Element>{group, part, chunk * CHUNK, lora, lora.rank ? (const Element*)lora.b + (int64_t)chunk * CHUNK * lora.rank : nullptr};
  };
  const int items = groups.count * chunks;
  pool->run_spans(items, grain(pool, groups.count, chunks), [&](int begin, int end) {
    alignas(64) float factors[GROUP_ROWS][MAX_RANK];
    for (int i = begin, made = -1; i < end; i++) {
      const Item<Element> item = at(i);
      if (!item.matrix) continue;
      if (const int pair = i / chunks * p.parts + item.part; made != pair) made = pair, make_factors(p, groups, item, factors);
      const Element* next = matrix_after(i, items, item.matrix, at);
      const int rank = item.lora.rank, past = std::min(outputs_of(item.part), item.first + CHUNK);
      for (int first = item.first; first < past; first += PANEL) {
        const int64_t done = (int64_t)(first - item.first) * rank;
        for (int m = 0; m < item.group.count; m++) {
          Y* y = (Y*)p.y + groups.rows[item.group.first + m] * p.y_stride + p.starts[item.part] + first;
          expand_row(item.matrix + done, next + done, factors[m], rank, std::min(PANEL, past - first), y);
        }
      }
    }
  });
}

}  // namespace

void lora_announce(Pool* pool, const LoraParams* p) {
  const Groups groups(*p);
  const int64_t size = p->dtype == DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t);
  const int64_t piece = (int64_t)p->inputs * size / WORD_BYTES / p->segments * 64;  // a line per word, as in gemm.h
  pool->upcoming.clear(pool->size());
  for (const bool is_b : {false, true})
    for (int g = 0; g < groups.count; g++)
      for (int part = 0; part < p->parts; part++) {
        const LoraPart& lora = p->table[groups.of[g].place * p->parts + part];
        const int64_t columns = is_b ? (p->starts[part + 1] - p->starts[part] + PANEL - 1) / PANEL * PANEL : p->inputs;
        const int thread = (int)((int64_t)g * pool->size() / groups.count);  // as run_spans divides the groups
        pool->upcoming.add(thread, is_b ? lora.b : lora.a, lora.rank * columns * size, piece);
      }
}

void lora_shrink(Pool* pool, const LoraParams* p) {
  with_element(p->dtype, [&](auto element) { shrink<decltype(element)>(pool, *p); });
}

void lora_look_up(Pool* pool, const LoraParams* p) {
  const Groups groups(*p);
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    pool->run(groups.count, 1, [&](int begin, int end) {
      for (int g = begin; g < end; g++) {
        const LoraPart& lora = p->table[groups.of[g].place];
        for (int m = 0; m < groups.of[g].count && lora.rank; m++) {
          const int64_t row = groups.rows[groups.of[g].first + m], id = ((const int64_t*)p->x)[row];
          float* sums = p->sums + row * p->max_rank;
          const bool known = id >= 0 && id < p->inputs;
          for (int r = 0; r < lora.rank; r += LANES) {
            const int n = std::min(LANES, lora.rank - r);
            put(sums + r, known ? get((const Element*)lora.a + id * lora.rank + r, n) : splat(0.0f), n);
          }
        }
      }
    });
  });
}

void lora_expand(Pool* pool, const LoraParams* p) {
  pool->upcoming.clear(0);  // what no product has taken is of no use to the next
  with_element(p->dtype, [&](auto element) {
    if (p->y_dtype == DTYPE_FP32) expand<decltype(element), float>(pool, *p);
    else expand<decltype(element), decltype(element)>(pool, *p);
  });
}

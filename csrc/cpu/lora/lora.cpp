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
#include "lora/expand.h"
#include "lora/shrink.h"

namespace {

// Items of consecutive memory to one thread, unless there are too few groups.
int grain(const Pool* pool, int groups, int items_of_group) {
  return groups >= ITEMS_PER_THREAD * pool->size() ? items_of_group : 1;
}

template <class Element> void shrink(Pool* pool, const LoraParams& p) {
  if (pool->upcoming.has_passed_first()) return;
  const Shrink<Element> all{p};
  pool->run_spans(all.items, grain(pool, all.groups.count, all.blocks), [&](int begin, int end) {
    for (int i = begin; i < end; i++)
      if (const Item<Element> item = all.at(i); item.matrix && !pool->upcoming.has_passed(0, i))
        all.template compute<true>(item, matrix_after(all, i, item.matrix));
  });
}

template <class Element, class Y> void expand(Pool* pool, const LoraParams& p) {
  const Expand<Element> all{p};
  pool->run_spans(all.items, grain(pool, all.groups.count, all.chunks), [&](int begin, int end) {
    alignas(64) float factors[GROUP_ROWS][MAX_RANK];
    for (int i = begin, made = -1; i < end; i++) {
      const Item<Element> item = all.at(i);
      if (!item.matrix) continue;
      const auto add = [&](int m, int c, int lanes, const F32& sums) {
        Y* y = (Y*)p.y + all.row(item, m) * p.y_stride + p.starts[item.part] + item.first + c;
        put(y, get(y, lanes) + sums, lanes);
      };
      if (all.may_be_early(item) && pool->upcoming.has_passed(1, i)) {
        for (int m = 0; m < item.group.count; m++)
          for (int c = 0; c < all.width(item); c += LANES) {
            const int lanes = std::min(LANES, all.width(item) - c);
            add(m, c, lanes, get(all.early(item, m) + c, lanes));
          }
        continue;
      }
      if (const int pair = i / all.chunks * p.parts + item.part; made != pair) made = pair, make_factors(p, all.groups, item, factors);
      all.template compute<true>(item, matrix_after(all, i, item.matrix), factors, add);
    }
  });
  pool->upcoming.clear();
}

template <class Items> Upcoming::Kernel early(const Items& all) {
  return {all.items, [all](int item) { return all.memory(item); }, [all](int item) { all.compute_early(item); }};
}

}  // namespace

void lora_announce(Pool* pool, const LoraParams* p) {
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    pool->upcoming.set(pool->size(), early(Shrink<Element>{*p}), p->early ? early(Expand<Element>{*p}) : Upcoming::Kernel{});
  });
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
  with_element(p->dtype, [&](auto element) {
    if (p->y_dtype == DTYPE_FP32) expand<decltype(element), float>(pool, *p);
    else expand<decltype(element), decltype(element)>(pool, *p);
  });
}

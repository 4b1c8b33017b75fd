// Which rows of a product are multiplied by which weight, the distribution of (weight, panel) pairs among threads, and the
// passes over a panel: the blocks of rows, and what each of them prefetches.
//
// A dense product has one weight. A product of experts has one per expert, and the rows of an expert are adjacent. Its
// panels are those of all experts that have rows, one expert after another, so that threads meet once per product, and a
// thread that has finished helps with any expert.
#pragma once
#include <algorithm>

#include "api.h"
#include "arena.h"
#include "pool.h"
#include "tiles/tile.h"

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline int share(int total, int part, int parts) { return (int)((int64_t)total * part / parts); }

struct ExpertRows {
  int expert;  // 0 in a dense product
  int first_row, rows;
};

class ProductRows {
 public:
  explicit ProductRows(int rows) : one_{0, 0, rows}, count_(rows > 0), most_(rows), total_(rows) {}

  // Lists the experts that have rows in memory of the calling thread, until its next product of experts.
  explicit ProductRows(const ExpertSlices& slices) : total_(slices.starts[slices.experts]) {
    thread_local Arena arena;
    ExpertRows* found = (ExpertRows*)arena.reserve(slices.experts * sizeof(ExpertRows));
    for (int e = 0; e < slices.experts; e++) {
      const int first = slices.starts[e], rows = slices.starts[e + 1] - first;
      if (rows) found[count_++] = {e, first, rows};
      most_ = std::max(most_, rows);
    }
    experts_ = found;
  }

  // The rows [first, first + rows) of these, counted from `first`.
  ProductRows slab(int first, int rows) const {
    ProductRows part = *this;
    part.first_ = first_ + first, part.total_ = rows;
    return part;
  }

  int count() const { return count_; }  // of experts
  int most() const { return most_; }    // rows of an expert
  int total() const { return total_; }  // rows

  ExpertRows operator[](int i) const {
    const ExpertRows& all = experts_ ? experts_[i] : one_;
    const int first = std::max(all.first_row, first_), past = std::min(all.first_row + all.rows, first_ + total_);
    return {all.expert, first - first_, std::max(0, past - first)};
  }

 private:
  const ExpertRows* experts_ = nullptr;  // null: one_
  ExpertRows one_{};
  int count_ = 0, most_ = 0, first_ = 0, total_;
};

// Some rows times a panel of their weight.
struct PanelRows {
  int panel;          // among those of all weights
  int first_output;   // of the panel, in its weight
  const float* bias;  // of the panel, or null
  int first_row, rows;
};

// Calls body(PanelRows) for every panel and every share of its rows, in multiples of `unit` rows. A thread takes whole
// panels from its own span; if there are fewer panels than ITEMS_PER_THREAD per thread, shares of panels, at most
// `most_cuts` of each. A thread that helps another takes shares.
template <class Body>
void for_panels(Pool* pool, const GemmParams& p, const ProductRows& rows, int unit, int most_cuts, bool divisible, Body body) {
  if (!rows.count()) return;
  const int of_weight = ceil_div(p.outputs, PANEL), panels = of_weight * rows.count(), wanted = ITEMS_PER_THREAD * pool->size();
  const int cuts = pool->size() == 1 ? 1 : std::clamp(ceil_div(wanted, panels), 1, most_cuts);
  const int shares = pool->size() > 1 && cuts == 1 && divisible ? 2 : cuts;
  pool->run_spans(panels * shares, shares / cuts, [&](int begin, int end) {
    for (int item = begin, past; item < end; item = past) {
      past = item % shares || cuts > 1 ? item + 1 : std::min(item + shares, end);
      const ExpertRows of = rows[item / shares / of_weight];
      const int index = item / shares % of_weight, units = ceil_div(of.rows, unit);
      const int first = share(units, item % shares, shares) * unit;
      const int last = std::min(of.rows, share(units, (past - 1) % shares + 1, shares) * unit);
      const float* bias = p.bias ? p.bias + (int64_t)of.expert * p.outputs + index * PANEL : nullptr;
      if (first < last) body(PanelRows{of.expert * of_weight + index, index * PANEL, bias, of.first_row + first, last - first});
      pool->upcoming.compute_fetched();
    }
  });
}

template <class F, class Body> void for_panels(Pool* pool, const GemmParams& p, const ProductRows& rows, Body body) {
  for_panels(pool, p, rows, 1, ceil_div(rows.most(), 4 * MOST_ROWS<F>), rows.most() > MOST_ROWS<F>, body);
}

constexpr int SPARE_LINES = 2;  // per word of K, that a pass without a part of the panel prefetches

// Calls body(integral_constant<rows>, first_row, block, blocks) for blocks of at most MOST_ROWS rows, as even as can be.
template <class F, class Body> void for_blocks(int rows, Body body) {
  const int blocks = ceil_div(rows, MOST_ROWS<F>);
  for (int b = 0; b < blocks; b++) {
    const int from = share(rows, b, blocks), to = share(rows, b + 1, blocks);
    with_rows<MOST_ROWS<F>>(to - from, [&](auto n) { body(n, from, b, blocks); });
  }
}

// The number of cache lines that pass `pass` of `passes` prefetches per word of K, and the first of them. A word of a panel
// has four lines.
struct Prefetch {
  int lines, first;
};
constexpr Prefetch plan(int pass, int passes) {
  if (passes == 1) return {4, 0};
  if (passes == 2) return {2, 2 * pass};
  if (passes == 3) return pass == 0 ? Prefetch{2, 0} : Prefetch{1, pass + 1};
  return {pass < 4, pass};
}

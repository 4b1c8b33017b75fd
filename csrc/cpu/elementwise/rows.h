// Distributes rows among threads, and sums over a row: in SUMS times 16 lanes, which are added in one fixed tree, so a
// row's bits depend on the row alone.
#pragma once
#include <algorithm>
#include <cmath>

#include "elements.h"
#include "pool.h"

constexpr int SUMS = 4;               // accumulators of a sum: as many as hide the latency of an addition
constexpr int FEWEST_ELEMENTS = 8192;  // per additional thread: they take about the time of a fork and join

// Calls body(at, n) for [0, size) in steps of at most LANES.
template <class Body> inline void each_vector(int size, Body body) {
  int at = 0;
  for (; at + LANES <= size; at += LANES) body(at, LANES);
  if (at < size) body(at, size - at);
}

// Calls body(row) for `rows` rows of `size` elements, distributed among the threads.
template <class Body> void for_rows(Pool* pool, int rows, int size, Body body) {
  const int worthwhile = (FEWEST_ELEMENTS + size - 1) / size, parts = ITEMS_PER_THREAD * pool->size();
  pool->run(rows, std::max(worthwhile, (rows + parts - 1) / parts), [&](int begin, int end) {
    for (int row = begin; row < end; row++) body(row);
  });
}

// A sum of `size` elements: add(to, at, n) adds the elements [at, at + n) to the lanes of `to`.
template <class Add> inline float sum_over(int size, Add add) {
  Wide sums[SUMS];
  int at = 0;
  for (; at + SUMS * WIDE <= size; at += SUMS * WIDE)
    EACH(s, SUMS) EACH(v, WIDE_VECTORS) add(sums[s].part[v], at + s * WIDE + v * LANES, LANES);
  for (; at + WIDE <= size; at += WIDE) EACH(v, WIDE_VECTORS) add(sums[0].part[v], at + v * LANES, LANES);
  EACH(v, WIDE_VECTORS) {
    const int from = at + v * LANES;
    if (from < size) add(sums[0].part[v], from, std::min(LANES, size - from));
  }
  EACH(v, WIDE_VECTORS) sums[0].part[v] = (sums[0].part[v] + sums[1].part[v]) + (sums[2].part[v] + sums[3].part[v]);
  return sum(sums[0]);
}

// The sum of squares of `size` elements; value(at, n) returns the elements [at, at + n).
template <class Value> inline float sum_of_squares(int size, Value value) {
  return sum_over(size, [&](F32& to, int at, int n) {
    const F32 x = value(at, n);
    to = fma(x, x, to);
  });
}

inline float norm_scale(float squares, int size, float eps) { return 1.0f / std::sqrt(squares / (float)size + eps); }

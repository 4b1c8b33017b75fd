// sum_parts: adds the float sums of several tensor-parallel ranks, and rounds the product once.
//
// Algorithm  y = sum of parts + bias. Neighbours are added first, then their sums: four parts as (0 + 1) + (2 + 3), the
//            order in which a single rank adds its segments (segments.h)
// Shapes     parts [count, rows, size] float, bias [size] float, y [rows, size]
// Tile       one row by one thread
// Floor      each array is read or written once; negligible beside the exchange of the parts between ranks
#include <bit>

#include "gemm/gemm.h"

namespace {

F32 sum_of(const float* part, int64_t stride, int count, int n) {
  if (count == 1) return get(part, n);
  const int half = (int)std::bit_floor((unsigned)count - 1);
  return sum_of(part, stride, half, n) + sum_of(part + half * stride, stride, count - half, n);
}

template <class Y> void sum_row(const SumPartsParams& p, int row) {
  const int64_t start = (int64_t)row * p.size, stride = (int64_t)p.rows * p.size;
  for (int c = 0; c < p.size; c += LANES) {
    const int n = std::min(LANES, p.size - c);
    F32 y = sum_of(p.parts + start + c, stride, p.count, n);
    if (p.bias) y += get(p.bias + c, n);
    put((Y*)p.y + start + c, y, n);
  }
}

}  // namespace

void sum_parts(Pool* pool, const SumPartsParams* p) {
  pool->run(p->rows, std::max(1, p->rows / (4 * pool->size())), [&](int begin, int end) {
    for (int row = begin; row < end; row++) with_element(p->y_dtype, [&](auto y) { sum_row<decltype(y)>(*p, row); });
  });
}

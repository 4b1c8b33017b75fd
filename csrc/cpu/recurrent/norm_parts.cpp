// norm_parts: the norms between the products of Mamba 1.
//
// Algorithm  each of three parts of a row is scaled to a mean square of 1, times weight, and rounded once; sums as in elementwise/rows.h
// Shapes     recurrent/scans.h
// Tile       one row by one thread
// Floor      each array passes through level 2 once
#include "elementwise/rows.h"
#include "recurrent/scans.h"

namespace {

template <class Element> void norm_part(const Element* x, const float* weight, Element* y, int size, float eps) {
  const auto value = [&](int at, int n) { return get(x + at, n); };
  const float scale = norm_scale(sum_of_squares(size, value), size, eps);
  each_vector(size, [&](int at, int n) { put(y + at, value(at, n) * scale * get(weight + at, n), n); });
}

}  // namespace

void norm_parts(Pool* pool, const NormPartsParams* p) {
  const int size = p->steps + 2 * p->state_size, parts[] = {p->steps, p->state_size, p->state_size};
  with_element(p->dtype, [&](auto element) {
    using Element = decltype(element);
    for_rows(pool, p->rows, size, [&](int64_t row) {
      const Element* x = (const Element*)p->x + row * p->x_stride;
      Element* y = (Element*)p->y + row * p->y_stride;
      if (!p->weight) {
        std::memcpy(y, x, size * sizeof(Element));
        return;
      }
      int at = 0;
      for (const int part : parts) {
        norm_part(x + at, p->weight + at, y + at, part, p->eps);
        at += part;
      }
    });
  });
}

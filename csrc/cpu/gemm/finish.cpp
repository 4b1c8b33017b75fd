// The end of a product: bias, residual, rounding. Inlined where tiles end, it was a third of the code of all products.
#include "gemm/gemm.h"

namespace {

template <bool WHOLE, class Y>
void finish_as(const GemmParams& p, const PanelRows& of, int first_row, int rows, const float* sums, const float* more) {
  const int width = WHOLE ? PANEL : std::min(PANEL, p.outputs - of.first_output);
  for (int m = 0; m < rows; m++) {
    const int64_t at = (of.first_row + first_row + m) * p.y_stride + of.first_output;
    for (int c = 0; c < width; c += LANES) {
      const int n = WHOLE ? LANES : std::min(LANES, width - c);
      F32 y = load(sums + m * PANEL + c);
      if (more) y += load(more + m * PANEL + c);
      if (of.bias) y += get(of.bias + c, n);
      if (p.residual) y += get((const Y*)p.residual + at + c, n);
      put((Y*)p.y + at + c, y, n);
    }
  }
}

}  // namespace

void finish(const GemmParams& p, const PanelRows& of, int first_row, int rows, const float* sums, const float* more) {
  const bool whole = of.first_output + PANEL <= p.outputs;
  with_element(p.y_dtype, [&](auto y) {
    whole ? finish_as<true, decltype(y)>(p, of, first_row, rows, sums, more)
          : finish_as<false, decltype(y)>(p, of, first_row, rows, sums, more);
  });
}

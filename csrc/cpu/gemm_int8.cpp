// gemm_int8: y = x * weight^T with int8 weights and activations (W8A8), exact until it is scaled.
//
// Algorithm  activations are quantised a row, or a segment of it, at a time (quantize.h). The dot instructions want one side unsigned, so a
//            weight is stored as code + 128, and 128 * sum(codes of x) is taken off the sums. Sums are 32-bit integers:
//            no order of additions could matter. y = float(sum) * (x scale * weight scale) + bias + residual, rounded once.
// Shapes     codes   [rows, stride]                    int8, rows padded with zeros to a multiple of 16
//            weight  [panels, words, 64] words         a word is 4 bytes along K; 128 past the edges
//            scales  x: [rows], weight: [outputs]      float
// Tile       MAX_ROWS rows x 64 outputs, all of K
// Floor      few rows: weight bytes / read bandwidth; many rows: 2 * rows * outputs * inputs operations
// Achieved   Zen 4, one core: 1 row 0.86 of reading, 4 rows 0.78; 16 rows 0.91 of peak, 512 rows 0.93 to 0.97
//            two cores: 0.80, 0.72; 0.84, 0.94 to 0.97
#include "quantize.h"
#include "segments.h"

namespace {

constexpr int WEIGHT_OFFSET = 128;
constexpr int FEWEST_INPUTS = 4096;  // to quantise that are worth another thread

template <class Element> void quantize(Pool* pool, const QuantizeParams& p) {
  pool->run(p.rows, std::max(ceil_div(FEWEST_INPUTS, p.inputs), p.rows / (2 * pool->size())), [&](int begin, int end) {
    for (int m = begin; m < end; m++)
      quantize_row((const Element*)p.x + m * p.x_stride, p.inputs, p.codes + m * p.codes_stride, p.scales[m], p.sums[m]);
  });
}

}  // namespace

void quantize_rows(Pool* pool, const QuantizeParams* p) {
  with_element(p->x_dtype, [&](auto x) { quantize<decltype(x)>(pool, *p); });
}

void gemm_int8(Pool* pool, const GemmInt8Params* params) {
  const GemmParams& p = params->gemm;
  const int words = ceil_div(p.inputs, WORD_BYTES);
  const size_t panel_bytes = words * STEP_BYTES;
  const SegmentPlan plan{(size_t)p.x_stride, (size_t)p.x_stride / p.segments, words / p.segments};
  for_panels(pool, p.rows, p.outputs, [&](int index, int first_row, int count) {
    const char* panel = (const char*)p.weight + index * panel_bytes;
    const char* x = (const char*)p.x + first_row * p.x_stride;
    const auto scaled = [&](const int32_t* sums, int row, int segment, int m, int c, int n) {
      const int64_t part = (int64_t)(row + m) * p.segments + segment;
      const I32 exact = load_words(sums + m * PANEL + c) - splat(WEIGHT_OFFSET * params->x_sums[part]);
      return to_float(exact) * (splat(params->x_scales[part]) * get(params->weight_scales + index * PANEL + c, n));
    };
    if (p.segments > 1)
      return segmented_product<Int8, int32_t>(p, plan, x, first_row, count, index * PANEL, panel, scaled);
    panel_product<Int8, int32_t>(x, p.x_stride, count, panel, words, [&](auto rows, int row, const int32_t* sums) {
      finish(p, rows, first_row + row, index * PANEL,
             [&](int m, int c, int n) { return scaled(sums, first_row + row, 0, m, c, n); });
    });
  });
}

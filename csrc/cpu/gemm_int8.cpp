// gemm_int8: y = x * weight^T with int8 weights and activations (W8A8), exact until it is scaled.
//
// Algorithm  activations are quantised a row at a time (quantize.h). The dot instructions want one side unsigned, so a
//            weight is stored as code + 128, and 128 * sum(codes of x) is taken off the sums. Sums are 32-bit integers:
//            no order of additions could matter. y = float(sum) * (x scale * weight scale) + bias + residual, rounded once.
// Shapes     codes   [rows, stride]                    int8, rows padded with zeros to a multiple of 16
//            weight  [panels, words, 64] words         a word is 4 bytes along K; 128 past the edges
//            scales  x: [rows], weight: [outputs]      float
// Tile       MAX_ROWS rows x 64 outputs, all of K
// Floor      few rows: weight bytes / read bandwidth; many rows: 2 * rows * outputs * inputs operations
#include "gemm.h"
#include "quantize.h"

namespace {

constexpr int WEIGHT_OFFSET = 128;

template <class Element> void quantize(Pool* pool, const QuantizeParams& p) {
  pool->run(p.rows, std::max(1, p.rows / (2 * pool->size())), [&](int begin, int end) {
    for (int m = begin; m < end; m++)
      quantize_row((const Element*)p.x + m * p.x_stride, p.inputs, p.codes + m * p.codes_stride, p.scales[m], p.sums[m]);
  });
}

// Sums to floats, in place. The row's and the outputs' scales are multiplied first, as the oracle does.
void scale_tile(const GemmInt8Params& p, const int32_t* sums, float* tile, int rows, int first_row, int first_output) {
  for (int m = 0; m < rows; m++) {
    const I32 offset = splat(WEIGHT_OFFSET * p.x_sums[first_row + m]);
    const F32 row_scale = splat(p.x_scales[first_row + m]);
    for (int c = 0; c < PANEL && first_output + c < p.gemm.outputs; c += LANES) {
      const int left = p.gemm.outputs - first_output - c;
      const float* scales = p.weight_scales + first_output + c;
      const I32 exact = load_words(sums + m * PANEL + c) - offset;
      store(tile + m * PANEL + c, to_float(exact) * (row_scale * (left < LANES ? load_n(scales, left) : load(scales))));
    }
  }
}

}  // namespace

void quantize_rows(Pool* pool, const QuantizeParams* p) {
  p->x_is_float ? quantize<float>(pool, *p) : quantize<uint16_t>(pool, *p);
}

void gemm_int8(Pool* pool, const GemmInt8Params* params) {
  const GemmParams& p = params->gemm;
  const int words = ceil_div(p.inputs, WORD_BYTES);
  const size_t panel_bytes = words * STEP_BYTES;
  for_tiles(pool, p.rows, p.outputs, [&](auto rows, int panel_index, int first_row, int block, int blocks) {
    alignas(64) int32_t sums[rows * PANEL];
    alignas(64) float tile[rows * PANEL];
    const char* panel = (const char*)p.weight + panel_index * panel_bytes;
    const char* x = (const char*)p.x + first_row * p.x_stride;
    planned_product<Int8, rows>(sums, x, p.x_stride, panel, words, panel_bytes, block, blocks);
    scale_tile(*params, sums, tile, rows, first_row, panel_index * PANEL);
    finish(p, tile, rows, first_row, panel_index * PANEL);
  });
}

// gemm_int8: y = x * weight^T with int8 weights and activations (W8A8), exact until it is scaled.
//
// Algorithm  activations are quantized row by row, or segment by segment of a row (quantize.h). The dot instructions need one
//            unsigned side, so a weight is stored as code + 128, and 128 * sum(codes of x) is subtracted from the sums; on
//            NEON both sides are signed. Sums are 32-bit integers, so their order does not matter. Then
//            y = float(sum) * (x scale * weight scale) + bias + residual, rounded once.
// Shapes     codes   [rows, stride]                    int8, rows padded with zeros to a multiple of 16
//            weight  [panels, words, 64] words         a word is 4 bytes along K; 128 past the edges
//            scales  x: [rows], weight: [outputs]      float
// Tile       MOST_ROWS rows x 64 outputs, all of K
// Floor      few rows: weight bytes / read bandwidth; many rows: 2 * rows * outputs * inputs operations
// Achieved   Zen 4, one core: 1 row 0.86 of reading, 4 rows 0.78; 16 rows 0.91 of peak, 512 rows 0.93 to 0.97
//            two cores: 0.80, 0.72; 0.84, 0.94 to 0.97
#include "gemm/quantize.h"
#include "gemm/tile_product.h"

namespace {

constexpr int FEWEST_INPUTS = 4096;  // to quantize, per additional thread

template <class Element> void quantize(Pool* pool, const QuantizeParams& p) {
  pool->run(p.rows, std::max(ceil_div(FEWEST_INPUTS, p.inputs), p.rows / (2 * pool->size())), [&](int begin, int end) {
    for (int m = begin; m < end; m++) {
      int8_t* codes = p.codes + m * p.codes_stride;
      quantize_row((const Element*)p.x + m * p.x_stride, p.inputs, codes, p.scales[m], p.sums[m]);
      std::fill(codes + ceil_div(p.inputs, LANES) * LANES, codes + ceil_div(p.inputs, 16) * 16, 0);
    }
  });
}

// The values of a tile of sums, and of segments of it.
struct Scaled {
  const GemmInt8Params& params;
  int panel, first_row = 0;

  F32 operator()(const int32_t* sums, int row, int segment, int m, int c, int n) const {
    const int64_t part = (int64_t)(first_row + row + m) * params.gemm.segments + segment;
    const I32 exact = load_words(sums + m * PANEL + c) - splat(Int8::OFFSET * params.x_sums[part]);
    return to_float(exact) * (splat(params.x_scales[part]) * get(params.weight_scales + panel * PANEL + c, n));
  }
};

// Rows times weights; the first row is row `first` of the product. `x_step`: bytes from a segment of x to the next.
template <class F>
void multiply(Pool* pool, const GemmInt8Params& params, const GemmParams& p, const ProductRows& rows, int first, size_t x_stride,
              size_t x_step) {
  const int words = ceil_div(params.gemm.inputs, WORD_BYTES);
  const SegmentPlan plan{x_stride, x_step, words / p.segments};
  for_panels<F>(pool, p, rows, [&](const PanelRows& of) {
    const char* panel = (const char*)p.weight + of.panel * words * STEP_BYTES;
    const char* x = (const char*)p.x + of.first_row * x_stride;
    const Scaled scaled{params, of.panel, first};
    if (p.segments > 1) return segmented_product<F, int32_t>(p, plan, x, of, panel, scaled, &pool->upcoming);
    panel_product<F, int32_t>(x, x_stride, of.rows, panel, words, [&](int count, int row, const int32_t* sums) {
      finish_values(p, of, row, count, [&](int m, int c, int n) { return scaled(sums, of.first_row + row, 0, m, c, n); });
    }, &pool->upcoming);
  });
}

template <class Wide> void int8_dot(Pool* pool, const GemmInt8Params& params, const ProductRows& rows) {
  const GemmParams& p = params.gemm;
  const size_t x_stride = p.x_stride, x_step = x_stride / p.segments;
  if constexpr (!std::is_same_v<Wide, Int8>)
    if (rows.most() > 1) {
      const int inputs = p.segments > 1 ? (int)x_stride : ceil_div(p.inputs, 16) * 16;
      const auto widen = [&](int m, int16_t* to) {
        for (int i = 0; i < inputs; i += 16) Wide::widen_sixteen(to + i, (const int8_t*)p.x + m * x_stride + i);
      };
      return for_slabs<int16_t>(pool, p, rows, inputs, widen, [&](const GemmParams& wide, const ProductRows& slab, int first) {
        multiply<Wide>(pool, params, wide, slab, first, wide.x_stride * sizeof(int16_t), x_step * sizeof(int16_t));
      });
    }
  multiply<Int8>(pool, params, p, rows, 0, x_stride, x_step);
}

void int8_tile(Pool* pool, const GemmInt8Params& params, const ProductRows& rows) {
  const GemmParams& p = params.gemm;
  const int words = ceil_div(p.inputs, WORD_BYTES) / p.segments;
  const size_t x_bytes = p.inputs / p.segments, x_step = p.x_stride / p.segments;
  const auto values = [&](int panel) { return Scaled{params, panel}; };
  tile_gemm<Int8Tiles>(pool, p, rows, WholePieces{x_bytes}, p.x_stride, x_step, values, stored_panels(p, words));
}

void int8(Pool* pool, const GemmInt8Params& params, const ProductRows& rows) {
  TILES_ARE_INSTRUCTIONS ? int8_tile(pool, params, rows) : int8_dot<WideInt8>(pool, params, rows);
}

}  // namespace

void quantize_rows(Pool* pool, const QuantizeParams* p) {
  with_element(p->x_dtype, [&](auto x) { quantize<decltype(x)>(pool, *p); });
}

void gemm_int8_tile(Pool* pool, const GemmInt8Params* p) { int8_tile(pool, *p, ProductRows(p->gemm.rows)); }
void gemm_int8(Pool* pool, const GemmInt8Params* p) { int8(pool, *p, ProductRows(p->gemm.rows)); }
void expert_gemm_int8(Pool* pool, const ExpertGemmInt8Params* p) { int8(pool, p->product, ProductRows(p->slices)); }

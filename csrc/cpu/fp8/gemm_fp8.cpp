// gemm_fp8: y = x * weight^T with weights in e4m3 codes and bfloat16 activations (weight-only).
//
// Algorithm  the products of gemm.cpp and of its tile order, with the words that expand.cpp makes of the codes: the same bits
//            as with the dequantized weight in bfloat16, on all instruction sets and with any number of rows and ranks.
//            Up to three rows with VBMI: codes are expanded in registers; few rows: CHUNK_WORDS of a panel at a time, into
//            the first-level cache; many rows, and tile order: a whole panel, once for all rows of a thread.
// Shapes     fp8.h
// Tile       few rows: all x 64 outputs, a group or chunk of K; many: as gemm.cpp
// Floor      few rows: the codes are read once, bytes / read bandwidth; many rows: 2 * rows * outputs * inputs flop
#include "fp8/fp8.h"
#include "gemm/tile_product.h"

namespace {

constexpr int CHUNK_WORDS = 64;  // of K, 16 KB
// More blocks of rows share a whole expanded panel; where they also share its widened weights, two do.
template <class F> constexpr int MOST_CHUNKED_BLOCKS = SHARES_WIDENED<F> ? 1 : 4;

inline Arena& panel_arena() {
  thread_local Arena arena;
  return arena;
}

// A whole panel in memory of the calling thread.
const char* expanded(const Fp8Panels& weight, int panel) {
  char* out = (char*)panel_arena().reserve(weight.words() * STEP_BYTES);
  weight.expand(out, panel, 0, weight.words());
  return out;
}

// y of up to ROWS rows; sum_segment(out, segment) adds the products of a segment to out[rows][PANEL].
template <int ROWS, class Sum> void finish_segments(const GemmParams& p, const PanelRows& of, Sum sum_segment) {
  alignas(64) float out[ROWS * PANEL];
  SegmentSums<ROWS> sums;
  for (int s = 0; s < p.segments; s++) {
    std::fill_n(out, of.rows * PANEL, 0.0f);
    sum_segment(out, s);
    sums.take(s, 0, of.rows, PANEL, [&](int m, int c, int) { return load(out + m * PANEL + c); });
  }
  sums.finish(p, of, 0, of.rows);
}

// y of up to fp8_rows_in_registers() rows.
void rows_in_registers(const Fp8Panels& weight, const GemmParams& p, const PanelRows& of) {
  const int of_segment = weight.words() / p.segments;
  const size_t stride = p.x_stride * sizeof(uint16_t);
  finish_segments<MOST_FP8_ROWS>(p, of, [&](float* out, int segment) {
    const char* x = (const char*)p.x + of.first_row * stride + (size_t)segment * of_segment * WORD_BYTES;
    weight.each_group(of.panel, segment * of_segment, of_segment, [&](const char* codes, int quads, const float* scales) {
      add_fp8_rows(out, of.rows, x, stride, codes, quads, scales);
      x += quads * QUAD_WORDS * WORD_BYTES;
    });
  });
}

// y of up to MOST_CHUNKED_BLOCKS blocks of rows.
template <class F, class Element> void chunk_by_chunk(const Fp8Panels& weight, const GemmParams& p, const PanelRows& of) {
  alignas(64) char words[CHUNK_WORDS * STEP_BYTES];
  const int of_segment = weight.words() / p.segments;
  const size_t stride = p.x_stride * sizeof(Element);
  finish_segments<MOST_CHUNKED_BLOCKS<F> * MOST_ROWS<F>>(p, of, [&](float* out, int segment) {
    for (int k = 0; k < of_segment; k += CHUNK_WORDS) {
      const int first = segment * of_segment + k, count = std::min(CHUNK_WORDS, of_segment - k);
      const char* x = (const char*)p.x + of.first_row * stride + (size_t)first * WordLayout<F>::X_BYTES;
      weight.expand(words, of.panel, first, count);
      for_blocks<F>(of.rows, [&](auto n, int row, int, int) {
        product<F, n, Start::ADD>(out + row * PANEL, PANEL, x + row * stride, stride, words, count);
      });
    }
  });
}

// y of any number of rows.
template <class F, class Element> void whole_panel(const Fp8Panels& weight, const GemmParams& p, const PanelRows& of, Upcoming* upcoming) {
  const char* panel = expanded(weight, of.panel);
  const size_t stride = p.x_stride * sizeof(Element);
  const char* x = (const char*)p.x + of.first_row * stride;
  if (p.segments > 1) {
    const SegmentPlan plan{stride, p.inputs / p.segments * sizeof(Element), weight.words() / p.segments};
    return segmented_product<F, float>(p, plan, x, of, panel,
                                       [](const float* out, int, int, int m, int c, int) { return load(out + m * PANEL + c); }, upcoming);
  }
  panel_product<F, float>(x, stride, of.rows, panel, weight.words(), [&](int count, int row, float* out) {
    finish(p, of, row, count, out);
  }, upcoming);
}

// `p` is that of the weight, or the same with widened rows.
template <class F, class Element>
void multiply(Pool* pool, const Fp8Panels& weight, const GemmParams& p, const ProductRows& rows) {
  const int in_registers = std::is_same_v<F, Bf16> ? fp8_rows_in_registers() : 0;
  for_panels<F>(pool, p, rows, [&](const PanelRows& of) {
    if (of.rows <= in_registers) rows_in_registers(weight, p, of);
    else if (of.rows <= MOST_CHUNKED_BLOCKS<F> * MOST_ROWS<F>) chunk_by_chunk<F, Element>(weight, p, of);
    else whole_panel<F, Element>(weight, p, of, &pool->upcoming);
  });
}

void fp8(Pool* pool, const GemmFp8Params& params, const ProductRows& rows) {
  const Fp8Panels weight(params);
  if (!WIDENS_BF16 || rows.most() == 1) return multiply<Bf16, Bfloat16>(pool, weight, params.gemm, rows);
  for_widened<Bfloat16>(pool, params.gemm, rows, [&](const GemmParams& wide, const ProductRows& slab, int) {
    multiply<WideBf16, float>(pool, weight, wide, slab);
  });
}

void fp8_tile(Pool* pool, const GemmFp8Params& params, const ProductRows& rows) {
  const GemmParams& p = params.gemm;
  const Fp8Panels weight(params);
  const size_t x_bytes = p.inputs / p.segments * sizeof(uint16_t);
  tile_gemm<Bf16Tiles>(pool, p, rows, WholePieces{x_bytes}, p.x_stride * sizeof(uint16_t), x_bytes, plain_sums, [&](int panel) {
    return PanelWords{expanded(weight, panel), weight.words() / p.segments};
  });
}

}  // namespace

void gemm_fp8(Pool* pool, const GemmFp8Params* p) { fp8(pool, *p, ProductRows(p->gemm.rows)); }
void gemm_fp8_tile(Pool* pool, const GemmFp8Params* p) { fp8_tile(pool, *p, ProductRows(p->gemm.rows)); }
void expert_gemm_fp8(Pool* pool, const ExpertGemmFp8Params* p) { fp8(pool, p->product, ProductRows(p->slices)); }
void expert_gemm_fp8_tile(Pool* pool, const ExpertGemmFp8Params* p) { fp8_tile(pool, p->product, ProductRows(p->slices)); }

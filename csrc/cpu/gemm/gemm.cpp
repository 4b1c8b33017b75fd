// gemm: y = x * weight^T with bfloat16, float16 or float weights, packed once at load.
//
// Algorithm  each output, or each segment of it, is one chain of dot products over K in float, from 0; see tile.h.
//            gemm_bf16_tile: in tile order, see tiles.h; gemm_fp16_tile: fp16_tile.cpp.
//            Rows of float16, and several rows of bfloat16 where there is no dot instruction, are first widened to float;
//            with vectors of sixteen lanes several blocks of them share weights that are widened, too: widened.h.
// Shapes     x       [rows, inputs]                     bfloat16, float16 or float, a row contiguous
//            weight  [panels, words, 64] words          a word is 2 bfloat16 or 1 float along K; zeros past the edges
//                    [panels, words, 4, 2, 16] float16  for each word of K and 16 outputs the odd inputs, then the even
//            y       [rows, outputs]                    bfloat16, float16 or float
// Tile       MOST_ROWS rows x 64 outputs, all of K
// Floor      few rows: the weights are read once, bytes / read bandwidth; many rows: 2 * rows * outputs * inputs flop
// Achieved   Zen 4, one core: 1 row 0.92 of reading, 4 rows 0.83; 16 rows 0.93 of peak, 512 rows 0.98
//            two cores: 0.92, 0.86; 0.90, 0.97
//            Emerald Rapids, one core, FMA: 1 row 0.86, 4 rows 0.77; 16 rows 0.75, 32 rows 0.85, 512 rows 0.87
#include "gemm/tile_product.h"

int chunk_pieces = 4;

void set_chunk_pieces(int32_t pieces) { chunk_pieces = std::clamp(pieces, 1, MOST_CHUNK_PIECES); }

namespace {

// With an odd number of bfloat16 inputs the last word of a row would extend into the next row: it is built here instead.
template <int ROWS> void add_last_input(float* tile, const Bfloat16* x, int64_t x_stride, int inputs, const char* panel) {
  uint32_t last[ROWS];
  EACH(m, ROWS) last[m] = x[m * x_stride + inputs - 1].bits;
  product<Bf16, ROWS, Start::ADD>(tile, PANEL, (const char*)last, WORD_BYTES, panel + (size_t)(inputs / 2) * STEP_BYTES, 1);
}

template <class F, class Element> void gemm(Pool* pool, const GemmParams& p, const ProductRows& rows) {
  constexpr int PER_WORD = WordLayout<F>::X_BYTES / (int)sizeof(Element);
  const int words = p.inputs / PER_WORD;
  const size_t panel_bytes = (size_t)ceil_div(p.inputs, PER_WORD) * STEP_BYTES;
  const SegmentPlan plan{p.x_stride * sizeof(Element), p.inputs / p.segments * sizeof(Element), words / p.segments};
  for_panels<F>(pool, p, rows, [&](const PanelRows& of) {
    const char* panel = (const char*)p.weight + of.panel * panel_bytes;
    const Element* x = (const Element*)p.x + of.first_row * p.x_stride;
    if (p.segments > 1)
      return segmented_product<F, float>(p, plan, (const char*)x, of, panel,
                                         [](const float* out, int, int, int m, int c, int) { return load(out + m * PANEL + c); },
                                         &pool->upcoming);
    panel_product<F, float>((const char*)x, p.x_stride * sizeof(Element), of.rows, panel, words, [&](auto count, int row, float* out) {
      if constexpr (std::is_same_v<F, Bf16>)
        if (p.inputs % 2) add_last_input<count>(out, x + row * p.x_stride, p.x_stride, p.inputs, panel);
      finish(p, of, row, count, out);
    }, &pool->upcoming);
  });
}

void bf16(Pool* pool, const GemmParams& p, const ProductRows& rows) {
  if (!WIDENS_BF16 || rows.most() == 1) return gemm<Bf16, Bfloat16>(pool, p, rows);
  for_widened<Bfloat16>(pool, p, rows, [&](const GemmParams& wide, const ProductRows& slab, int) {
    gemm<WideBf16, float>(pool, wide, slab);
  });
}

void fp16(Pool* pool, const GemmParams& p, const ProductRows& rows) {
  for_widened<Float16>(pool, p, rows, [&](const GemmParams& wide, const ProductRows& slab, int) {
    gemm<Fp16, float>(pool, wide, slab);
  });
}

void bf16_tile(Pool* pool, const GemmParams& p, const ProductRows& rows) {
  const size_t x_bytes = p.inputs / p.segments * sizeof(uint16_t);
  const int words = ceil_div(p.inputs, 2) / p.segments;
  tile_gemm<Bf16Tiles>(pool, p, rows, WholePieces{x_bytes}, p.x_stride * sizeof(uint16_t), x_bytes, plain_sums, stored_panels(p, words));
}

}  // namespace

void gemm_bf16(Pool* pool, const GemmParams* p) { bf16(pool, *p, ProductRows(p->rows)); }
void gemm_bf16_tile(Pool* pool, const GemmParams* p) { bf16_tile(pool, *p, ProductRows(p->rows)); }
void gemm_fp32(Pool* pool, const GemmParams* p) { gemm<Fp32, float>(pool, *p, ProductRows(p->rows)); }
void gemm_fp16(Pool* pool, const GemmParams* p) { fp16(pool, *p, ProductRows(p->rows)); }

void expert_gemm_bf16(Pool* pool, const ExpertGemmParams* p) { bf16(pool, p->product, ProductRows(p->slices)); }
void expert_gemm_bf16_tile(Pool* pool, const ExpertGemmParams* p) { bf16_tile(pool, p->product, ProductRows(p->slices)); }
void expert_gemm_fp32(Pool* pool, const ExpertGemmParams* p) { gemm<Fp32, float>(pool, p->product, ProductRows(p->slices)); }
void expert_gemm_fp16(Pool* pool, const ExpertGemmParams* p) { fp16(pool, p->product, ProductRows(p->slices)); }

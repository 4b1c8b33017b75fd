// gemm_int4_tile: gemm_int4 in tile order; int4.cpp describes the shapes.
//
// Algorithm  the codes of a group, minus 8 if there are no zero points, are expanded to a panel of bfloat16 in the
//            first-level cache, up to 256 inputs at a time; SLAB_ROWS rows are multiplied by it as in tile_product.h. Each
//            group is divided into pieces from its start, and its last piece is padded with zeros; its sum starts from 0.
//            Then, as in dot order, y += (sum - zero * sum of x over the group) * scale, group after group of a segment.
// Floor      one row: weight bytes / read bandwidth; many rows: 2 * rows * outputs * inputs flop
// Achieved   not measured with AMX
#include "gemm/int4/mxfp4.h"
#include "gemm/int4/slabs.h"
#include "gemm/tile_product.h"

namespace {

constexpr int CHUNK_OCTETS = CHUNK_PIECES * PIECE_WORDS / OCTET_WORDS;

template <class Codes> class Int4Tiles {
 public:
  Int4Tiles(const float* group_sums, const Int4Layout& layout, const PackedRows& x, const Codes& codes)
      : group_sums_(group_sums), layout_(layout), x_(x), codes_(codes) {}

  void operator()(float* sums, int first_row, int rows, const char* group, int index) {
    multiply(first_row, rows, group, index);
    const float* of_x = group_sums_ ? group_sums_ + (int64_t)first_row * layout_.groups + index : nullptr;
    for (int m = 0; m < rows; m++) {
      F32 product[1][PANEL_VECTORS];
      EACH(v, PANEL_VECTORS) product[0][v] = load(product_ + m * PANEL + v * LANES);
      add_scaled(sums + m * PANEL, product, group, 0, layout_, of_x ? of_x + m * layout_.groups : nullptr);
    }
  }

 private:
  void multiply(int first_row, int rows, const char* group, int index) {
    for (int octet = 0, piece = 0; octet < layout_.octets; octet += CHUNK_OCTETS, piece += CHUNK_PIECES) {
      const int octets = std::min(CHUNK_OCTETS, layout_.octets - octet), words = octets * OCTET_WORDS;
      const int pieces = ceil_div(words, PIECE_WORDS);
      expand_codes(words_, group + layout_.codes_at + octet * STEP_BYTES, octets, codes_);
      std::memset(words_ + words * STEP_BYTES, 0, (pieces * PIECE_WORDS - words) * STEP_BYTES);
      const PanelPart part{words_, pieces, nullptr};
      multiply_chunk(registers_, product_, piece > 0, {x_, index, first_row, rows, piece}, part, 0, part.whole, false);
    }
  }

  const float* group_sums_;
  const Int4Layout& layout_;
  const PackedRows& x_;
  const Codes codes_;
  TileRegisters<Bf16Tiles> registers_;
  alignas(64) char words_[CHUNK_PIECES * PIECE_BYTES];
  alignas(64) float product_[SLAB_ROWS * PANEL];
};

template <class Codes> void int4_tile(Pool* pool, const GemmInt4Params& params, const ProductRows& rows, const Codes& codes) {
  const GemmParams& p = params.gemm;
  if (!rows.count()) return;
  const Int4Layout layout = layout_of(params);
  if (params.group_sums) sum_groups<Bfloat16>(pool, p, rows.total(), layout, params.group_size, params.group_sums);
  const size_t group_bytes = params.group_size * sizeof(uint16_t);
  PackedRows x(rows, layout.groups, group_bytes);
  x.pack(pool, (char*)row_arena().reserve(x.bytes()), (const char*)p.x, p.x_stride * sizeof(uint16_t), group_bytes);
  for_tile_panels(pool, p, rows, [&](const PanelRows& of) {
    Int4Tiles tiles(params.group_sums, layout, x, codes);
    multiply_slabs<SLAB_ROWS>(params, p, layout, of, [&](auto... each) { tiles(each...); });
  });
}

}  // namespace

// Rows of float16 have one order.
void gemm_int4_tile(Pool* pool, const GemmInt4Params* p) {
  if (p->x_dtype == DTYPE_FP16) gemm_int4(pool, p);
  else int4_tile(pool, *p, ProductRows(p->gemm.rows), Int4Codes(p->group_sums ? 0 : 8));
}
void expert_gemm_int4_tile(Pool* pool, const ExpertGemmInt4Params* p) {
  if (p->product.x_dtype == DTYPE_FP16) expert_gemm_int4(pool, p);
  else int4_tile(pool, p->product, ProductRows(p->slices), Int4Codes(p->product.group_sums ? 0 : 8));
}
void gemm_mxfp4_tile(Pool* pool, const GemmInt4Params* p) { int4_tile(pool, *p, ProductRows(p->gemm.rows), mxfp4_codes()); }
void expert_gemm_mxfp4_tile(Pool* pool, const ExpertGemmInt4Params* p) {
  int4_tile(pool, p->product, ProductRows(p->slices), mxfp4_codes());
}

// gemm_int4_tile: gemm_int4 in tile order; int4.cpp describes the shapes.
//
// Algorithm  each group is divided into pieces from its start, and its last piece is padded with zeros; its sum starts from 0.
//            Then, as in dot order, y += (sum - zero * sum of x over the group) * scale, group after group of a segment.
//            Many rows: the codes of some groups, minus 8 if there are no zero points, are expanded to a panel of bfloat16. 16
//            rows are multiplied by all of these groups, as in tile_product.h, then their products are scaled and added
//            with the sums in registers, so that nothing but rows and sums passes between two levels of caches. Few rows
//            (tile_few.h) use no tiles. float16 is split as in split.h, and a piece adds the products of the high parts, then
//            those of the low ones.
// Floor      one row: weight bytes / read bandwidth; many rows: 2 * rows * outputs * inputs flop
// Achieved   not measured with AMX
#include "gemm/int4/mxfp4.h"
#include "gemm/int4/slabs.h"
#include "gemm/int4/tile_few.h"
#include "gemm/split.h"

namespace {

constexpr int GROUP_PIECES = 2;  // of groups that are expanded together: with rows, products and sums 24 KB
constexpr int SCALED_ROWS = REGISTERS == 32 ? 16 : 4;

// Some groups of a panel.
struct Groups {
  const char* first;
  int count;
  const Int4Layout& layout;
  const float* of_x;  // sums of the first row over the first group, or null
};

// sums[ROWS][one vector of outputs] += products[count][TILE_ROWS][...], scaled, group after group.
template <int ROWS, bool ZEROS> [[gnu::noipa]] void add_products(float* sums, const float* products, const Groups& of, int output) {
  F32 total[ROWS];
  EACH(m, ROWS) total[m] = load(sums + m * PANEL);
  const char* group = of.first;
  for (int g = 0; g < of.count; g++, group += of.layout.group_bytes, products += TILE_ROWS * PANEL) {
    const F32 scale = load_fp16(group + output * 2);
    const F32 zero = ZEROS ? load_u8(group + SCALE_BYTES + output) : splat(0.0f);
    EACH(m, ROWS) {
      F32 value = load(products + m * PANEL);
      if (ZEROS) value = fma(splat(-of.of_x[m * of.layout.groups + g]), zero, value);
      total[m] = fma(value, scale, total[m]);
    }
  }
  EACH(m, ROWS) store(sums + m * PANEL, total[m]);
}

template <bool ZEROS> void add_block(float* sums, const float* products, int rows, Groups of) {
  int m = 0;
  const auto add = [&](auto n) {
    for (int c = 0; c < PANEL; c += LANES) add_products<n, ZEROS>(sums + m * PANEL + c, products + m * PANEL + c, of, c);
    m += n, of.of_x += ZEROS ? (int64_t)n * of.layout.groups : 0;
  };
  while (m + SCALED_ROWS <= rows) add(std::integral_constant<int, SCALED_ROWS>{});
  while (m + 4 <= rows) add(std::integral_constant<int, 4>{});
  while (m < rows) add(std::integral_constant<int, 1>{});
}

// Expanded codes, each piece of which is multiplied by PARTS pieces of rows.
template <int PARTS> struct RepeatedWords {
  const char* at;
  const char* piece(int i) const { return at + i / PARTS * PIECE_BYTES; }
};

// PARTS: of a number of x, see split.h; 1 for bfloat16.
template <int PARTS, class Packed, class Codes> class Int4Tiles {
 public:
  Int4Tiles(const float* group_sums, const Int4Layout& layout, const Packed& x, const Codes& codes)
      : group_sums_(group_sums), layout_(layout), x_(x), codes_(codes), pieces_(ceil_div(layout.octets * OCTET_WORDS, PIECE_WORDS)) {}

  // sums[rows][PANEL] += the products of the rows from `row` on and groups [first, past).
  void operator()(float* sums, int row, int rows, const char* panel, int first, int past) {
    if (rows <= FEW_TILE_ROWS)
      return with_rows<FEW_TILE_ROWS>(rows, [&](auto n) {
        for (int g = first; g < past; g++)
          add_few<n, PARTS>(sums, x_.block(row, n, g), panel + g * layout_.group_bytes, layout_, codes_, of_x(row, g));
      });
    const int together = std::max(1, GROUP_PIECES / pieces_);
    for (int g = first; g < past; g += together) {
      const Groups of{panel + g * layout_.group_bytes, std::min(together, past - g), layout_, of_x(row, g)};
      for (int piece = 0; piece < pieces_; piece += MOST_CHUNK_PIECES) add(sums, row, rows, of, g, piece);
    }
  }

 private:
  // The pieces of all groups from `piece` on, of which a group of more than MOST_CHUNK_PIECES has others.
  void add(float* sums, int row, int rows, const Groups& of, int index, int piece) {
    const int pieces = std::min(MOST_CHUNK_PIECES, pieces_ - piece), last = piece + pieces == pieces_;
    for (int g = 0; g < of.count; g++) expand(words_ + g * pieces * PIECE_BYTES, of.first + g * layout_.group_bytes, piece, pieces);
    for (int from = 0; from < rows; from += TILE_ROWS) {
      const int count = std::min(TILE_ROWS, rows - from);
      float* products = products_ + (pieces_ > MOST_CHUNK_PIECES ? from * PANEL : 0);
      for (int g = 0; g < of.count; g++) {
        const Slab<Packed> slab{x_, index + g, row + from, count, piece * PARTS};
        const RepeatedWords<PARTS> words{words_ + g * pieces * PIECE_BYTES};
        multiply_block(registers_, products + g * TILE_ROWS * PANEL, PANEL, piece > 0, slab.block(0), words, 0, pieces * PARTS);
      }
      if (!last) continue;
      const Groups of_rows{of.first, of.count, layout_, of_x(row + from, index)};
      if (group_sums_) add_block<true>(sums + from * PANEL, products, count, of_rows);
      else add_block<false>(sums + from * PANEL, products, count, of_rows);
    }
  }

  void expand(char* words, const char* group, int piece, int pieces) {
    const int octet = piece * PIECE_OCTETS, octets = std::min(pieces * PIECE_OCTETS, layout_.octets - octet);
    expand_codes(words, group + layout_.codes_at + octet * STEP_BYTES, octets, codes_);
    std::memset(words + octets * OCTET_WORDS * STEP_BYTES, 0, (pieces * PIECE_OCTETS - octets) * OCTET_WORDS * STEP_BYTES);
  }

  const float* of_x(int row, int group) const { return group_sums_ ? group_sums_ + (int64_t)row * layout_.groups + group : nullptr; }

  const float* group_sums_;
  const Int4Layout& layout_;
  const Packed& x_;
  const Codes codes_;
  const int pieces_;  // of a group
  TileRegisters<Bf16Tiles> registers_;
  alignas(64) char words_[MOST_CHUNK_PIECES * PIECE_BYTES];
  alignas(64) float products_[SLAB_ROWS * PANEL];  // of all rows, if a group is expanded in parts
};

template <class Element, int PARTS, class Pieces, class Codes>
void multiply(Pool* pool, const GemmInt4Params& params, const ProductRows& rows, const Pieces& pieces, const Codes& codes) {
  const GemmParams& p = params.gemm;
  if (!rows.count()) return;
  const Int4Layout layout = layout_of(params);
  if (params.group_sums) sum_groups<Element>(pool, p, rows.total(), layout, params.group_size, params.group_sums);
  const size_t group_bytes = params.group_size * sizeof(uint16_t);
  PackedRows x(rows, layout.groups, pieces);
  x.pack(pool, (char*)row_arena().reserve(x.bytes()), (const char*)p.x, p.x_stride * sizeof(uint16_t), group_bytes);
  for_tile_panels(pool, p, rows, [&](const PanelRows& of) {
    Int4Tiles<PARTS, PackedRows<Pieces>, Codes> tiles(params.group_sums, layout, x, codes);
    multiply_slabs<SLAB_ROWS>(params, p, layout, of, [&](auto... each) { tiles(each...); });
  });
}

template <class Codes> void bf16(Pool* pool, const GemmInt4Params& p, const ProductRows& rows, const Codes& codes) {
  multiply<Bfloat16, 1>(pool, p, rows, WholePieces{p.group_size * sizeof(uint16_t)}, codes);
}

void int4_tile(Pool* pool, const GemmInt4Params& p, const ProductRows& rows) {
  const Int4Codes codes(p.group_sums ? 0 : 8);
  if (p.x_dtype == DTYPE_FP16) multiply<Float16, 2>(pool, p, rows, SplitPieces{p.group_size}, codes);
  else bf16(pool, p, rows, codes);
}

}  // namespace

void gemm_int4_tile(Pool* pool, const GemmInt4Params* p) { int4_tile(pool, *p, ProductRows(p->gemm.rows)); }
void expert_gemm_int4_tile(Pool* pool, const ExpertGemmInt4Params* p) { int4_tile(pool, p->product, ProductRows(p->slices)); }
void gemm_mxfp4_tile(Pool* pool, const GemmInt4Params* p) { bf16(pool, *p, ProductRows(p->gemm.rows), mxfp4_codes()); }
void expert_gemm_mxfp4_tile(Pool* pool, const ExpertGemmInt4Params* p) { bf16(pool, p->product, ProductRows(p->slices), mxfp4_codes()); }

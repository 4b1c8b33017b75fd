// gemm_int4_tile: gemm_int4 (which has the shapes) in tile order.
//
// Algorithm  the codes of a group, less 8 where there are no zero points, become a panel of bfloat16 in the first-level
//            cache, up to 256 inputs at a time, which passes SLAB_ROWS rows as in tile_product.h. A group is cut into pieces
//            of its own, from its start, the last filled up with zeros; its sum starts from 0. Then, as in dot order,
//            y += (sum - zero * sum of x over the group) * scale, group after group of a segment.
// Floor      one row: weight bytes / read bandwidth; many rows: 2 * rows * outputs * inputs flop
// Achieved   not measured where there is AMX
#include "int4_groups.h"
#include "tile_product.h"

namespace {

constexpr int CHUNK_OCTETS = CHUNK_PIECES * PIECE_WORDS / OCTET_WORDS;

// The word of two bfloat16 that Int4Codes gives whole or split, as the instruction set multiplies it.
template <class Weights> inline I32 whole_word(Weights w) {
  if constexpr (requires { w.even; }) return ((w.even >> 16) & 0xffff) | w.odd;
  else return w;
}

// `octets` octets of codes -> panel[whole pieces][PIECE_WORDS][PANEL] words.
[[gnu::noipa]] void expand_codes(char* panel, const char* codes, int octets, const Int4Codes& table) {
  const int words = octets * OCTET_WORDS;
  std::memset(panel + words * STEP_BYTES, 0, (ceil_div(words, PIECE_WORDS) * PIECE_WORDS - words) * STEP_BYTES);
  for (int c = 0; c < octets; c++, codes += STEP_BYTES) {
    EACH(line, 4) prefetch<1>(codes + NEAR_BYTES + line * 64);
    EACH(v, PANEL_VECTORS) {
      const I32 packed = load_words(codes + v * sizeof(I32));
      EACH(j, OCTET_WORDS) store_words(panel + (c * OCTET_WORDS + j) * STEP_BYTES + v * sizeof(I32), whole_word(table.word(packed, j)));
    }
  }
}

class Int4Slab {
 public:
  Int4Slab(const GemmInt4Params& params, const Int4Layout& layout, const PackedRows& x) : p_(params), layout_(layout), x_(x) {}

  // sums[rows][PANEL] = rows [first_row, first_row + rows) times groups [first, past) of a panel.
  void multiply(float* sums, int first_row, int rows, const char* panel, int first, int past) {
    std::fill_n(sums, rows * PANEL, 0.0f);
    for (int g = first; g < past; g++) {
      const char* group = panel + g * layout_.group_bytes;
      multiply_group(first_row, rows, group, g);
      for (int m = 0; m < rows; m++) add_scaled(sums + m * PANEL, group_ + m * PANEL, group, first_row + m, g);
    }
  }

 private:
  void multiply_group(int first_row, int rows, const char* group, int index) {
    for (int octet = 0, piece = 0; octet < layout_.octets; octet += CHUNK_OCTETS, piece += CHUNK_PIECES) {
      const int octets = std::min(CHUNK_OCTETS, layout_.octets - octet);
      expand_codes(words_, group + layout_.codes_at + octet * STEP_BYTES, octets, codes_);
      const PanelPart part{words_, ceil_div(octets * OCTET_WORDS, PIECE_WORDS), nullptr};
      multiply_chunk(registers_, group_, piece > 0, {x_, index, first_row, rows, piece}, part, 0, part.whole, false);
    }
  }

  void add_scaled(float* sums, const float* part, const char* group, int row, int index) const {
    for (int c = 0; c < PANEL; c += LANES) {
      F32 value = load(part + c);
      if (p_.group_sums) {
        const float sum = p_.group_sums[(int64_t)row * layout_.groups + index];
        value = fma(splat(-sum), load_u8(group + SCALE_BYTES + c), value);
      }
      store(sums + c, fma(value, load_fp16(group + c * 2), load(sums + c)));
    }
  }

  const GemmInt4Params& p_;
  const Int4Layout& layout_;
  const PackedRows& x_;
  const Int4Codes codes_{p_.group_sums ? 0 : 8};  // the code that stands for 0
  TileRegisters<Bf16Tiles> registers_;
  alignas(64) char words_[CHUNK_PIECES * PIECE_BYTES];
  alignas(64) float group_[SLAB_ROWS * PANEL];
};

}  // namespace

void gemm_int4_tile(Pool* pool, const GemmInt4Params* params) {
  const GemmParams& p = params->gemm;
  if (params->wide) return gemm_int4(pool, params);  // rows of float16 have one order
  if (p.rows == 0) return;
  const Int4Layout layout = layout_of(*params);
  if (params->group_sums) sum_groups<Bfloat16>(pool, p, layout, params->group_size, params->group_sums);
  thread_local Arena arena;
  const size_t group_bytes = params->group_size * sizeof(uint16_t);
  PackedRows x(p.rows, layout.groups, group_bytes);
  x.pack(pool, (char*)arena.reserve(x.bytes()), (const char*)p.x, p.x_stride * sizeof(uint16_t), group_bytes);
  const int groups = layout.groups / p.segments;  // of a segment
  for_tile_panels(pool, p.rows, p.outputs, [&](int index, int first_row, int count) {
    Int4Slab slab(*params, layout, x);
    alignas(64) float out[SLAB_ROWS * PANEL];
    SegmentSums<SLAB_ROWS> segments;
    const char* panel = (const char*)p.weight + index * layout.panel_bytes;
    const F32 unit = splat(params->scale_unit);
    for (int from = 0; from < count; from += SLAB_ROWS) {
      const int row = first_row + from, rows = std::min(SLAB_ROWS, count - from);
      for (int s = 0; s < p.segments; s++) {
        slab.multiply(out, row, rows, panel, s * groups, (s + 1) * groups);
        segments.take(s, 0, rows, PANEL, [&](int m, int c, int) { return load(out + m * PANEL + c) * unit; });
      }
      finish(p, rows, row, index * PANEL, [&](int m, int c, int) { return segments.total(p.segments, m, c); });
    }
  });
}

// gemm_int4: y = x * weight^T with 4-bit weights in groups along K and 16-bit activations (weight-only).
//
// Algorithm  within a group, products of x with the codes (less 8 where there are no zero points) are summed in float in
//            the order of K; then y += (sum - zero * sum of x over the group) * scale, group after group of a segment.
//            Codes are small integers, exact in bfloat16, so the dot instructions of tile.h serve; for rows of float16,
//            which are first widened, they become float.
// Shapes     x       [rows, inputs]          bfloat16 or float16
//            weight  [panels, groups, ...]   for each group of each panel of 64 outputs
//                      scales [64]           float16, in multiples of scale_unit
//                      zeros  [64]           uint8, only with zero points
//                      octets [group_size / 8][64] of 32 bits: eight inputs of an output. Nibble j of the low half is
//                                            input 2j, of the high half input 2j + 1; so bits 4j give word j of bfloat16
// Tile       MAX_ROWS rows x INT4_STRIP vectors of outputs; the sums over groups stay in the first-level cache
// Floor      one row: weight bytes / read bandwidth; from about four rows on 2 * rows * outputs * inputs flop
// Achieved   one core of Zen 4: 1 row 0.78 of reading; 4 rows 0.72 of the bfloat16 peak, 16 rows 0.87, 512 rows 0.91
#include "int4_groups.h"

namespace {

// Narrower than a strip of tile.h: the packed codes wait in registers too.
template <int ROWS> constexpr int INT4_STRIP = ROWS == 1 || (ROWS == 2 && REGISTERS == 32) ? 4 : 2;

// How eight inputs of 32 bits meet words of bfloat16, and of widened float16.
struct Bf16Rows {
  using F = Bf16;
  Int4Codes codes;
  Bf16::Weights word(I32 packed, int j, int) const { return codes.word(packed, j); }
};
struct Fp16Rows {
  using F = Fp16;
  I32 zero;
  explicit Fp16Rows(int zero_code) : zero(splat(zero_code)) {}
  I32 word(I32 packed, int j, int part) const {
    const I32 code = (packed >> (part == 0 ? 16 + 4 * j : 4 * j)) & 15;  // the odd input first
    return (I32)to_float(code - zero);
  }
};

// One strip of one group: out[ROWS][strip] += scale * (x * codes - zero * sums). `sums` is null without zero points.
template <class Codes, int ROWS, bool AHEAD>
[[gnu::noipa]] void add_group(float* out, const char* x, size_t x_stride, const char* group, int strip,
                              const Int4Layout& layout, const Codes& codes, const float* sums) {
  using F = typename Codes::F;
  using Words = WordLayout<F>;
  constexpr int N = INT4_STRIP<ROWS>;
  F32 part[ROWS][N] = {};
  const char* lanes = group + layout.codes_at + strip * N * sizeof(I32);
  const Codes table = codes;
  for (int c = 0; c < layout.octets; c++, lanes += STEP_BYTES, x += OCTET_WORDS * Words::X_BYTES) {
    if constexpr (AHEAD) EACH(line, 4) prefetch<1>(lanes + NEAR_BYTES + line * 64);
    EACH(j, OCTET_WORDS) EACH(half, Words::PARTS) {
      const auto word = [&](int v) { return table.word(load_words(lanes + v * sizeof(I32)), j, half); };
      step<F, ROWS, N>(part, x + j * Words::X_BYTES + Words::x(half), x_stride, word, [](int) {});
    }
  }
  EACH(v, N) {
    const int output = (strip * N + v) * LANES;
    const F32 scale = load_fp16(group + output * 2);
    const F32 zero = sums ? load_u8(group + SCALE_BYTES + output) : splat(0.0f);
    EACH(m, ROWS) {
      F32 value = part[m][v];
      if (sums) value = fma(splat(-sums[m * layout.groups]), zero, value);
      float* at = out + m * PANEL + output;
      store(at, fma(value, scale, load(at)));
    }
  }
}

// out[ROWS][PANEL] = x * panel over groups [first, past).
template <class Codes, int ROWS>
void int4_product(float* out, int first, int past, const char* x, size_t x_stride, const char* panel, const Int4Layout& layout,
                  const Codes& codes, const float* sums, bool first_block) {
  std::fill_n(out, ROWS * PANEL, 0.0f);
  panel += first * layout.group_bytes;
  for (int g = first; g < past; g++, panel += layout.group_bytes)
    for (int strip = 0; strip < PANEL_VECTORS / INT4_STRIP<ROWS>; strip++) {
      const auto add = first_block && strip == 0 ? add_group<Codes, ROWS, true> : add_group<Codes, ROWS, false>;
      add(out, x + (size_t)g * layout.octets * OCTET_WORDS * WordLayout<typename Codes::F>::X_BYTES, x_stride, panel, strip, layout, codes, sums ? sums + g : nullptr);
    }
}

// `p` is params.gemm, or what is left of it when its rows are widened.
template <class Element, class Codes>
void gemm(Pool* pool, const GemmInt4Params& params, const GemmParams& p, const Codes& codes) {
  const Int4Layout layout = layout_of(params);
  if (params.group_sums) sum_groups<Element>(pool, p, layout, params.group_size, params.group_sums);
  for_panels(pool, p.rows, p.outputs, [&](int index, int first_row, int count) {
    const char* panel = (const char*)p.weight + index * layout.panel_bytes;
    for_blocks(count, [&](auto rows, int from, int block, int) {
      const int row = first_row + from;
      alignas(64) float out[rows * PANEL];
      SegmentSums<rows> segments;
      const char* x = (const char*)((const Element*)p.x + row * p.x_stride);
      const float* sums = params.group_sums ? params.group_sums + (int64_t)row * layout.groups : nullptr;
      const F32 unit = splat(params.scale_unit);
      for (int s = 0; s < p.segments; s++) {
        const int first = layout.groups / p.segments * s, past = first + layout.groups / p.segments;
        int4_product<Codes, rows>(out, first, past, x, p.x_stride * sizeof(Element), panel, layout, codes, sums, block == 0);
        segments.take(s, 0, rows, PANEL, [&](int m, int c, int) { return load(out + m * PANEL + c) * unit; });
      }
      finish(p, rows, row, index * PANEL, [&](int m, int c, int) { return segments.total(p.segments, m, c); });
    });
  });
}

}  // namespace

void gemm_int4(Pool* pool, const GemmInt4Params* p) {
  const int zero = p->group_sums ? 0 : 8;
  if (p->wide) gemm<float>(pool, *p, widened(pool, p->gemm, p->wide), Fp16Rows(zero));
  else gemm<Bfloat16>(pool, *p, p->gemm, Bf16Rows{Int4Codes(zero)});
}

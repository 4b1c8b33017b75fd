// gemm_int4: y = x * weight^T with 4-bit weights in groups along K and 16-bit activations (weight-only).
//
// Algorithm  within a group, products of x and the codes (minus 8 if there are no zero points) are summed in float in the
//            order of K; then y += (sum - zero * sum of x over the group) * scale, group after group of a segment, whose y is
//            multiplied by the output's unit.
//            Codes are small integers, exact in bfloat16, so the dot instructions of tile.h can be used. For few rows
//            codes are expanded in registers; for float16 rows, which are first widened, to float. Many rows share a panel
//            of bfloat16 (slabs.h), or of float where words would be widened.
// Shapes     x       [rows, inputs]          bfloat16 or float16
//            weight  [panels, groups, ...]   for each group of each panel of 64 outputs
//                      scales [64]           float16, in multiples of the output's unit
//                      zeros  [64]           uint8, only with zero points
//                      octets [group_size / 8][64] of 32 bits: eight inputs of an output. Nibble j of the low half is
//                                            input 2j, of the high half input 2j + 1; so bits 4j give word j of bfloat16
// Tile       few rows: all x INT4_STRIP vectors of outputs; the sums over groups stay in the first-level cache. Many:
//            SLAB_BLOCKS blocks of MOST_ROWS x 64 outputs, a group of K
// Floor      one row: weight bytes / read bandwidth; from about four rows on 2 * rows * outputs * inputs flop
// Achieved   one core of Zen 4: 1 row 0.78 of reading; 4 rows 0.72 of the bfloat16 peak, 16 rows 0.87, 512 rows 0.91
#include "gemm/int4/mxfp4.h"
#include "gemm/int4/slabs.h"

namespace {

// Whether few rows of bfloat16 are widened: otherwise each word of theirs is split in two for two or four vectors of outputs.
constexpr bool WIDENS_FEW = LANES == 16 && WIDENS_BF16;
// Up to this many, codes are expanded in registers.
constexpr int FEW_ROWS = REGISTERS == 16 ? 1 : WIDENS_FEW ? MOST_ROWS<Fp16> : MOST_ROWS<Bf16>;
constexpr int SLAB_BLOCKS = 20;  // of rows that are multiplied by an expanded group: at most 30 KB of sums

// Narrower than a strip of tile.h for several rows, because the packed codes need registers too.
template <int ROWS> constexpr int INT4_STRIP = ROWS > 2 ? 2 : REGISTERS == 16 ? 8 : 4;

// Expand eight inputs of 32 bits for products with words of bfloat16, and with float16 widened to float.
template <class Codes> struct Bf16Rows {
  using F = Bf16;
  Codes codes;
  Bf16::Weights word(I32 packed, int j, int) const { return codes.word(packed, j); }
};
template <class Codes> struct FloatRows {
  using F = Fp16;
  Codes codes;
  I32 word(I32 packed, int j, int part) const { return codes.half(part == 0 ? packed >> 16 : packed, j); }  // the odd input first
};

template <class Codes, int ROWS> constexpr bool RELOADS = LANES < 16 || (std::is_same_v<typename Codes::F, Fp16> && ROWS > 4);

// out[ROWS][PANEL] = x * `groups` groups of a panel: in each scale * (x * codes - zero * sums). `sums` is null without zero
// points.
template <class Codes, int ROWS>
[[gnu::noipa]] void few_rows(float* out, const char* x, size_t x_stride, const char* group, int groups, const Int4Layout& given,
                             const Codes& codes, const float* sums) {
  using F = typename Codes::F;
  using Words = WordLayout<F>;
  constexpr int N = INT4_STRIP<ROWS>;
  const Int4Layout layout = given;  // in registers: as far as the compiler knows, `out` could be it
  std::fill_n(out, ROWS * PANEL, 0.0f);
  for (; groups > 0; groups--, group += layout.group_bytes, x += (size_t)layout.octets * OCTET_WORDS * Words::X_BYTES) {
#pragma GCC unroll 1
    for (int vector = 0; vector < PANEL_VECTORS; vector += N) {
      F32 part[ROWS][N] = {};
      const char* lanes = group + layout.codes_at + vector * sizeof(I32);
      const char* here = x;
      for (int c = 0; c < layout.octets; c++, lanes += STEP_BYTES, here += OCTET_WORDS * Words::X_BYTES) {
        EACH(line, std::max(1, N * (int)sizeof(I32) / 64)) prefetch<1>(lanes + NEAR_BYTES + line * 64);
        EACH(j, OCTET_WORDS) EACH(half, Words::PARTS) {
          if constexpr (RELOADS<Codes, ROWS>) asm volatile("" ::: "memory");  // constants that gcc 12 would keep in registers displace sums
          const auto word = [&](int v) { return codes.word(load_words(lanes + v * sizeof(I32)), j, half); };
          step<F, ROWS, N>(part, here + j * Words::X_BYTES + Words::x(half), x_stride, word, [](int) {});
        }
      }
      add_scaled(out, part, group, vector * LANES, layout, sums);
    }
    if (sums) sums++;
  }
}

// What all rows of a product have in common.
struct Int4Product {
  const GemmInt4Params& params;
  Int4Layout layout;
  int zero;  // the code of zero, unless there are zero points

  explicit Int4Product(const GemmInt4Params& p) : params(p), layout(layout_of(p)), zero(p.group_sums ? 0 : 8) {}
  const float* sums_of(int row) const { return params.group_sums ? params.group_sums + (int64_t)row * layout.groups : nullptr; }
};

// y of up to FEW_ROWS rows. `p` is params.gemm, or the same with widened rows, of which the first is row `offset`.
template <class Element, class Codes>
void multiply_few(const Int4Product& product, const GemmParams& p, const PanelRows& of, int offset, const Codes& codes) {
  const Int4Layout& layout = product.layout;
  const char* panel = (const char*)p.weight + of.panel * layout.panel_bytes;
  const char* x = (const char*)((const Element*)p.x + of.first_row * p.x_stride);
  const size_t x_bytes = layout.octets * OCTET * sizeof(Element);  // of a group
  const float* sums = product.sums_of(offset + of.first_row);
  const float* const units = product.params.units + of.panel * PANEL;
  with_rows<FEW_ROWS>(of.rows, [&](auto rows) {
    alignas(64) float out[rows * PANEL];
    SegmentSums<rows> segments;
    for (int s = 0; s < p.segments; s++) {
      const int first = layout.groups / p.segments * s, past = first + layout.groups / p.segments;
      few_rows<Codes, rows>(out, x + first * x_bytes, p.x_stride * sizeof(Element), panel + first * layout.group_bytes, past - first, layout,
                            codes, sums ? sums + first : nullptr);
      segments.take(s, 0, rows, PANEL, [&](int m, int c, int) { return load(out + m * PANEL + c) * load(units + c); });
    }
    segments.finish(p, of, 0, rows);
  });
}

// Whether several blocks of rows share codes that are expanded to float, not to words that each would widen.
template <class F> constexpr bool TO_FLOAT = (REGISTERS == 16 || LANES == 16) && std::is_same_v<F, WideBf16>;
// Inputs that are expanded at once, if groups have fewer: sums pass between two levels of caches less often.
constexpr int NEAR_INPUTS = REGISTERS == 16 ? 64 : 1;

// product += rows times a strip of a group in float, as tile<WideBf16> would add it. There is at least one word.
template <int ROWS, int N>
inline void float_tile(F32 (&product)[ROWS][N], const char* x, size_t x_stride, const char* strip, int words) {
  EACH(m, ROWS) EACH(v, N) opaque(product[m][v]);  // as in tile.h
  const char* const past = strip + words * 2 * STEP_BYTES;
  do {
    EACH(part, 2) {
      const auto weights = [&](int v) { return load_words(strip + part * STEP_BYTES + v * sizeof(I32)); };
      step<Fp32, ROWS, N>(product, x + WideLayout::x(part), x_stride, weights, [](int) {});
    }
    x += WideLayout::X_BYTES, strip += 2 * STEP_BYTES;
  } while (strip != past);
}

// One strip of sums[ROWS][PANEL] += the products of rows and a group whose codes are expanded. With and without ZEROS it is
// compiled apart: both in one function take so many registers that sums are put on the stack.
template <class F, bool FLOAT, int ROWS, bool ZEROS>
[[gnu::noipa]] void add_expanded(float* sums, const char* x, size_t x_stride, const char* words, const char* group, int strip,
                                 const Int4Layout& layout, const float* of_x) {
  constexpr int N = STRIP<ROWS>;
  F32 product[ROWS][N] = {};
  if constexpr (LANES < 16)  // otherwise gcc 12 copies the sums of every word for the code below
    if (layout.octets < 1) __builtin_unreachable();
  const char* const lanes = words + strip * N * sizeof(I32);
  if constexpr (FLOAT) float_tile(product, x, x_stride, lanes, layout.octets * OCTET_WORDS);
  else tile<F, ROWS>(product, x, x_stride, lanes, layout.octets * OCTET_WORDS);
  EACH(m, ROWS) EACH(v, N) opaque(product[m][v]);  // otherwise gcc 12 reserves registers for the code below and spills above
  add_scaled(sums, product, group, strip * N * LANES, layout, ZEROS ? of_x : nullptr);
}

// Rows in groups are read a few lines at a time, which hardware does not foresee.
inline void prefetch_rows(const char* x, int rows, size_t x_stride, size_t bytes) {
  for (int m = 0; m < rows; m++)
    for (size_t line = 0; line < bytes; line += 64) prefetch<2>(x + m * x_stride + line);
}

// sums[rows][PANEL] += the products of rows and some groups; FLOAT: in several blocks of rows, whose least number is known.
template <class F, bool FLOAT, class Codes>
void add_many(float* sums, const char* x, int rows, size_t x_stride, const char* group, int groups, const Int4Layout& layout,
              const Codes& codes, const float* of_x) {
  thread_local Arena arena;
  const size_t bytes = layout.octets * OCTET_WORDS * STEP_BYTES * (FLOAT ? 2 : 1);
  const size_t x_bytes = layout.octets * OCTET_WORDS * WordLayout<F>::X_BYTES;
  char* const words = (char*)arena.reserve(groups * bytes);
  for (int g = 0; g < groups; g++) {
    const char* const octets = group + g * layout.group_bytes + layout.codes_at;
    if constexpr (FLOAT) expand_floats(words + g * bytes, octets, layout.octets, codes);
    else expand_codes(words + g * bytes, octets, layout.octets, codes);
  }
  for_blocks<F>(rows, [&](auto n, int row, int, int) {
    if constexpr (!FLOAT || n >= (MOST_ROWS<F> + 1) / 2) {
      prefetch_rows(x + row * x_stride + groups * x_bytes, n, x_stride, groups * x_bytes);  // for the next groups
      const float* of_rows = of_x ? of_x + (int64_t)row * layout.groups : nullptr;
      const auto add = of_rows ? add_expanded<F, FLOAT, n, true> : add_expanded<F, FLOAT, n, false>;
      for (int g = 0; g < groups; g++)
        for (int strip = 0; strip < STRIPS<n>; strip++)
          add(sums + row * PANEL, x + row * x_stride + g * x_bytes, x_stride, words + g * bytes, group + g * layout.group_bytes, strip,
              layout, of_rows ? of_rows + g : nullptr);
    } else __builtin_trap();  // the rows would be left out
  });
}

// y of any number of rows.
template <class F, class Element, class Codes>
void multiply_many(const Int4Product& product, const GemmParams& p, const PanelRows& of, int offset, const Codes& codes) {
  constexpr int SLAB_ROWS = SLAB_BLOCKS * MOST_ROWS<F>;
  const Int4Layout& layout = product.layout;
  const size_t x_stride = p.x_stride * sizeof(Element), group_bytes = layout.octets * OCTET * sizeof(Element);
  multiply_slabs<SLAB_ROWS>(product.params, p, layout, of, [&](float* sums, int row, int rows, const char* panel, int first, int past) {
    const char* x = (const char*)p.x + row * x_stride;
    const float* of_x = product.sums_of(offset + row);
    const int most = std::max(1, NEAR_INPUTS / (layout.octets * OCTET));
    const auto add = rows > MOST_ROWS<F> ? add_many<F, TO_FLOAT<F>, Codes> : add_many<F, false, Codes>;
    for (int g = first; g < past; g += most)
      add(sums, x + g * group_bytes, rows, x_stride, panel + g * layout.group_bytes, std::min(most, past - g), layout, codes,
          of_x ? of_x + g : nullptr);
  });
}

// Rows of Element are widened to float. A few are multiplied by `few`, codes in float, more by `many`, words of bfloat16.
template <class Element, class Few, class Many>
void multiply_floats(Pool* pool, const Int4Product& product, const GemmParams& p, const ProductRows& rows, const Few& few, const Many& many) {
  for_widened<Element>(pool, p, rows, [&](const GemmParams& wide, const ProductRows& slab, int first) {
    for_panels<WideBf16>(pool, wide, slab, [&](const PanelRows& of) {
      if (of.rows <= FEW_ROWS) multiply_few<float>(product, wide, of, first, FloatRows<Few>{few});
      else multiply_many<WideBf16, float>(product, wide, of, first, many);
    });
  });
}

// Rows of bfloat16 that are few for their weight are multiplied as they are given.
template <class Codes>
void multiply_words(Pool* pool, const Int4Product& product, const GemmParams& p, const ProductRows& rows, const Codes& codes) {
  const Bf16Rows<Codes> few{codes};
  if (!WIDENS_BF16 || rows.most() <= FEW_ROWS)
    return for_panels<Bf16>(pool, p, rows, [&](const PanelRows& of) {
      if (of.rows <= FEW_ROWS) multiply_few<Bfloat16>(product, p, of, 0, few);
      else if constexpr (!WIDENS_BF16) multiply_many<Bf16, Bfloat16>(product, p, of, 0, codes);
    });
  for_widened<Bfloat16>(pool, p, rows, [&](const GemmParams& wide, const ProductRows& slab, int first) {
    for_panels<WideBf16>(pool, wide, slab, [&](const PanelRows& of) {
      if (of.rows > FEW_ROWS) return multiply_many<WideBf16, float>(product, wide, of, first, codes);
      PanelRows as_given = of;
      as_given.first_row += first;
      multiply_few<Bfloat16>(product, p, as_given, 0, few);
    });
  });
}

void int4(Pool* pool, const GemmInt4Params& params, const ProductRows& rows) {
  const GemmParams& p = params.gemm;
  const Int4Product product(params);
  with_element(params.x_dtype, [&](auto x) {
    if (params.group_sums) sum_groups<decltype(x)>(pool, p, rows.total(), product.layout, params.group_size, params.group_sums);
  });
  const Int4Codes codes(product.zero);
  if (params.x_dtype == DTYPE_FP16) multiply_floats<Float16>(pool, product, p, rows, FloatCodes(product.zero), codes);
  else if constexpr (WIDENS_FEW) multiply_floats<Bfloat16>(pool, product, p, rows, FloatCodes(product.zero), codes);
  else multiply_words(pool, product, p, rows, codes);
}

void mxfp4(Pool* pool, const GemmInt4Params& params, const ProductRows& rows) {
  const Int4Product product(params);
  if constexpr (WIDENS_FEW)
    multiply_floats<Bfloat16>(pool, product, params.gemm, rows, mxfp4_floats(), mxfp4_codes());
  else multiply_words(pool, product, params.gemm, rows, mxfp4_codes());
}

}  // namespace

void gemm_int4(Pool* pool, const GemmInt4Params* p) { int4(pool, *p, ProductRows(p->gemm.rows)); }
void expert_gemm_int4(Pool* pool, const ExpertGemmInt4Params* p) { int4(pool, p->product, ProductRows(p->slices)); }
void gemm_mxfp4(Pool* pool, const GemmInt4Params* p) { mxfp4(pool, *p, ProductRows(p->gemm.rows)); }
void expert_gemm_mxfp4(Pool* pool, const ExpertGemmInt4Params* p) { mxfp4(pool, p->product, ProductRows(p->slices)); }

// gemm_q8_0, gemm_q4_0, ..., gemm_tq2_0, and the same of experts: y = x * weight^T with weights in the blocks of GGUF
// files and activations in int8.
//
// Algorithm  rows are quantized in groups of 32 inputs (rows.h). For each group of a format the products of codes are summed
//            as integers, which is exact in any order; a dot begins with -centre * sum of x's codes. Then
//            y = fma(sum, scale * x scale, y), and with minimums y = fma(least, -(x scale * sum of x's codes), y), group
//            after group of a segment. So the bits are the same with every instruction set, AMX included.
//            One block of rows multiplies codes that are unpacked in registers; several share them unpacked in the nearest
//            cache. Slices of 256 inputs are multiplied by all rows, one after another, so that memory is read once.
// Shapes     x [rows, inputs] bfloat16, float16 or float;  weight: panels as in formats.h and grid_formats.h
// Tile       MOST_ROWS rows x 64 outputs, a group of inputs; the sums of BLOCK_SLAB rows stay in a near cache
// Floor      one row: weight bytes / read bandwidth; many rows: 2 * rows * outputs * inputs operations of int8
// Achieved   docs/benchmarks/kernels.md
#include <bit>

#include "blocks/grid_formats.h"
#include "blocks/rows.h"
#include "gemm/segments.h"

namespace {

template <class F> constexpr int BLOCK_SLAB = 20 * MOST_ROWS<F>;  // rows: at most 30 KB of sums
// Whether a single block of rows prefetches: a third faster on Zen 3, up to half on an Emerald Rapids; slower on Zen 4, whose own
// prefetches suffice.
constexpr bool PREFETCHES_ALONE = LANES < 16 || WIDENS_BF16;

constexpr int UNROLLED_WORDS = IS_COMPACT ? 1 : 8;  // of a group: unrolled, shifts are by constants

// Whether products are added in 16 bits, and if so in several sums for a group, whose own sums then need registers, too.
template <class F> constexpr bool ADDS_HALVES = requires { F::whole(I32{}); };
template <class F> constexpr bool IN_PARTS = ADDS_HALVES<F> && MOST_ROWS<F> < MAX_ROWS;
template <class F, int ROWS> constexpr int VECTORS = !IN_PARTS<F> ? STRIP<ROWS> : ROWS == 1 ? 4 : 2;  // of outputs

// What multiplies one row by a format, and several; and the form of codes that several blocks of rows share.
template <class Format> constexpr bool ARE_SMALL = Format::Codes::MOST < 128;
template <class Format> constexpr int ALL_BITS = (int)std::bit_ceil(Format::Codes::MOST + 1u) - 1;  // fewer products to compile
template <class Format> using OneRow = std::conditional_t<ARE_SMALL<Format>, SmallCodes<ALL_BITS<Format>>, Int8>;
template <class Format> using Rows = std::conditional_t<ARE_SMALL<Format>, OneRow<Format>, WideInt8>;
template <class Format> using Shared = std::conditional_t<ARE_SMALL<Format>, Expanded<Format::GROUP>, Bytes>;
template <class F> using RowsOf = std::conditional_t<CODE_BYTES<F> == 1, Int8, F>;  // has the same rows
template <class Format> constexpr bool ARE_SHARED = std::is_same_v<typename Format::Codes, Shared<Format>>;

// Whether one block of rows multiplies codes that it unpacks itself.
template <class F, class Format> constexpr bool IN_REGISTERS = requires(const char* lanes) { Format::Codes::word(lanes, 0); } &&
                                                               (ARE_SMALL<Format> || ARE_SHARED<Format> || std::is_same_v<F, Int8>);

// The most rows that multiply codes which they unpack.
template <class F, class Codes> constexpr int UNPACKED_ROWS = MOST_ROWS<F>;
template <class F, class Codes> requires (REGISTERS == 32 && Codes::IS_JOINED) constexpr int UNPACKED_ROWS<F, Codes> = std::min(MOST_ROWS<F>, 5);

// What products of different formats' groups have in common.
template <int INPUTS, bool AT_0, bool LEAST> struct Group {
  static constexpr int WORDS = INPUTS / 4;
  static constexpr bool STARTS_AT_0 = AT_0, HAS_LEAST = LEAST;
};

// A block of rows: codes, and what belongs to their groups.
struct RowBlock {
  const char* codes;
  const RowGroup* groups;
  size_t stride, groups_stride;  // bytes
};

// The groups [first, past) of a slice.
struct SliceGroups {
  const char* codes;           // of the first of them
  size_t group_bytes;          // or of two that share words
  const float *scale, *least;  // [PANEL] for each; `least` only with minimums
  const char* ahead;           // what is prefetched meanwhile, `ahead_bytes` for each group; or null
  size_t ahead_bytes;
  int first, past;
};

// The same number in a register: an array whose numbers are hidden as they lie is also written to memory on NEON.
inline I32 hidden(I32 x) { return opaque(x), x; }

inline float number_at(const char* p) { return *(const float*)p; }

// Whether the vectors of a row load the same start each for itself; gcc 12 would copy the first and spill.
template <class F> constexpr bool RELOADS_STARTS = REGISTERS == 16 && !ADDS_HALVES<F>;

// The products of a group, whose sums begin with start(row); take(row, vector, sum) receives them. Inlined, because `take` as
// an argument reads each of its pointers from memory for each sum.
template <class F, class Codes, int WORDS, int ROWS, int N, class Start, class Take>
[[gnu::always_inline]] inline void dot_group(const char* x, size_t x_stride, const char* lanes, Start start, Take take) {
  I32 dots[ROWS][N];
  EACH(m, ROWS) EACH(v, N) {
    if constexpr (IS_NEON) dots[m][v] = hidden(start(m));
    else opaque(dots[m][v] = start(m));
  }
  if constexpr (!std::is_same_v<F, Int8>) tile<F, ROWS>(dots, x, x_stride, lanes, WORDS);
  else {
    // Several words of a group share the codes in an octet, and all of them its higher bits. gcc 12 loads these once, into
    // registers that the sums of NEON's wide strips need, unless each word's codes have an address of their own.
#pragma GCC unroll UNROLLED_WORDS
    for (int j = 0; j < WORDS; j++) {
      if constexpr (IS_NEON) asm("" : "+r"(lanes));
      step<F, ROWS, N>(dots, x + j * WORD_BYTES, x_stride, [&](int v) { return Codes::word(lanes + v * sizeof(I32), j); }, [](int) {});
    }
  }
  if constexpr (!IS_NEON)  // otherwise gcc 12 reserves registers for what follows, and spills here
    EACH(m, ROWS) EACH(v, N) opaque(dots[m][v]);
  EACH(m, ROWS) EACH(v, N) take(m, v, dots[m][v]);
}

template <class F, class Codes, int WORDS, int ROWS, int N, class Start, class Take> requires ADDS_HALVES<F>
inline void dot_group(const char* x, size_t x_stride, const char* lanes, Start start, Take take) {
  constexpr int PART = std::min(WORDS, F::WORDS), PARTS = WORDS / PART;
  I32 dots[ROWS][N];
  const char* fourth = x + 3 * x_stride;  // of three rows each, gcc 12 adds once or twice the stride in the load
  asm("" : "+r"(fourth));
  EACH(part, PARTS) {
    I32 halves[ROWS][N] = {};
    EACH(i, PART) {
      const int j = part * PART + i;
      const auto weights = [&](int v) { return Codes::bytes(lanes + v * sizeof(I32), j); };
      if constexpr (ROWS <= 3) step<F, ROWS, N>(halves, x + j * WORD_BYTES, x_stride, weights, [](int) {});
      else {
        I32 w[N];
        EACH(v, N) w[v] = weights(v);
        EACH(m, ROWS) {
          const I32 row = F::row((m < 3 ? x : fourth) + m % 3 * x_stride + j * WORD_BYTES);
          EACH(v, N) halves[m][v] = F::dot(halves[m][v], w[v], row);
        }
      }
    }
    EACH(m, ROWS) EACH(v, N) {
      I32 dot = F::whole(halves[m][v]) + (part ? dots[m][v] : start(m));
      opaque(dot);
      if (part < PARTS - 1) dots[m][v] = dot;
      else take(m, v, dot);
    }
  }
}

// One strip of sums[ROWS][PANEL] += rows * a group. `halves`: the numbers of that half of the rows' groups.
template <class F, class Codes, class Kind, int ROWS, int N>
inline void add_strip(float* sums, const char* x, const RowBlock& rows, const char* halves, const char* groups, const char* lanes,
                      const float* scale, const float* least) {
  const size_t stride = rows.groups_stride;
  if constexpr (REGISTERS == 16) asm("" : "+r"(sums));  // one address for all rows, where gcc 12 computes each
  const auto start = [&](int m) {
    const char* at = halves + m * stride + offsetof(RowGroup, start);
    if constexpr (RELOADS_STARTS<F>) asm("" : "+r"(at));
    return Kind::STARTS_AT_0 ? splat(0) : repeat_word(at);
  };
  dot_group<F, Codes, Kind::WORDS, ROWS, N>(x, rows.stride, lanes, start, [&](int m, int v, I32 dot) {
    const F32 x_scale = splat(number_at(groups + m * stride + offsetof(RowGroup, scale)));
    const F32 of_least = splat(number_at(halves + m * stride + offsetof(RowGroup, of_least)));
    const int at = m * PANEL + v * LANES;
    F32 sum = fma(to_float(dot), x_scale * load(scale + v * LANES), load(sums + at));
    if constexpr (Kind::HAS_LEAST) sum = fma(of_least, load(least + v * LANES), sum);
    store(sums + at, sum);
  });
}

// sums[ROWS][PANEL] += rows * groups. A call for each strip, and even for each group, would take a tenth of the time.
template <class F, class Codes, class Kind, int ROWS>
[[gnu::noipa]] void add_groups(float* sums, const RowBlock& given, const SliceGroups& slice) {
  constexpr int N = VECTORS<F, ROWS>, PARTS = ROW_GROUP / 4 / Kind::WORDS;  // groups of a row's group
  const RowBlock rows = given;  // in registers: as far as the compiler knows, sums could be these
  const float *scale = slice.scale, *least = slice.least;
  const char *x = rows.codes, *codes = slice.codes, *ahead = slice.ahead, *until = ahead, *groups = (const char*)rows.groups;
  const int past = slice.past;
  // A core has only so many lines under way, so each strip asks for its share. A full block, rarely alone, has few to ask for.
  constexpr bool SPREADS = ROWS < MOST_ROWS<F>;
  const size_t at_once = SPREADS ? slice.ahead_bytes * N * LANES / PANEL : slice.ahead_bytes;
  const auto prefetch_share = [&] {
    if (ahead)
      for (until += at_once; ahead < until; ahead += 64) prefetch<2>(ahead);
  };
#pragma GCC unroll 1
  for (int g = slice.first; g < past; g++) {
    if constexpr (!SPREADS) prefetch_share();
    const char* const halves = groups + g % PARTS * sizeof(float);
    const auto add_strips = [&](auto own) __attribute__((always_inline)) {
#pragma GCC unroll 1
      for (int output = 0; output < PANEL; output += N * LANES) {
        if constexpr (SPREADS) prefetch_share();
        add_strip<F, decltype(own), Kind, ROWS, N>(sums + output, x, rows, halves, groups, codes + output * WORD_BYTES, scale, least);
        scale += N * LANES;
        if constexpr (Kind::HAS_LEAST) least += N * LANES;
      }
    };
    if constexpr (Codes::INPUTS == Kind::WORDS * WORD_BYTES) add_strips(Codes()), codes += slice.group_bytes;
    else if (g % 2 == 0) add_strips(Codes());  // the first of two groups
    else add_strips(Later<Codes, Kind::WORDS>()), codes += slice.group_bytes;
    x += Kind::WORDS * WordLayout<F>::X_BYTES;
    if (g % PARTS == PARTS - 1) groups += sizeof(RowGroup);
  }
}

// The codes of some blocks as bytes, group after group.
template <class Format> [[gnu::noipa]] void expand_slice(char* to, const char* blocks, int count) {
  using Codes = typename Format::Codes;
  constexpr int WORDS = Codes::INPUTS / WORD_BYTES;
  for (; count > 0; count--, blocks += PANEL_BLOCK_BYTES<Format>)
    for (int unit = 0; unit < Format::BLOCK / Codes::INPUTS; unit++, to += WORDS * STEP_BYTES)
      for (int v = 0; v < PANEL_VECTORS; v++) EACH(j, WORDS) {
        const size_t lane = v * sizeof(I32);
        store_words(to + j * STEP_BYTES + lane, bytes_of<Codes>(blocks + Format::HEADER + lane, unit, j));
      }
}

// Up to BLOCK_SLAB rows of `x` times a part of a panel. Inputs are numbered from the start of the panel's first block.
template <class F, class Format> class SlabProduct {
 public:
  SlabProduct(const BlockRows& x, int skipped, int first_row, int rows)
      : x_(x), skipped_(skipped), first_row_(first_row), rows_(rows) {}

  // sums[rows][PANEL] += the products of inputs [first, past) of a panel.
  void add(float* sums, const char* panel, int first, int past) {
    constexpr int LENGTH = SLICE_BLOCKS<Format> * Format::BLOCK;
    for (int at = first, next; at < past; at = next) {
      const int block = at / Format::BLOCK;
      next = std::min(block * Format::BLOCK + LENGTH, past);
      add_blocks(sums, panel + block * PANEL_BLOCK_BYTES<Format>, at, next);
    }
  }

 private:
  // `blocks`: those of the inputs [first, past).
  void add_blocks(float* sums, const char* blocks, int first, int past) {
    constexpr size_t BYTES = PANEL_BLOCK_BYTES<Format>;
    const int from = first / Format::BLOCK, count = ceil_div(past, Format::BLOCK) - from;
    for (int i = 0; i < count; i++) Format::scales(scales_, i * GROUPS_PER_BLOCK<Format>, blocks + i * BYTES);
    next_ = blocks + count * BYTES;
    if constexpr (IN_REGISTERS<F, Format>)
      if (ARE_SHARED<Format> || rows_ <= UNPACKED_ROWS<F, typename Format::Codes>)
        return multiply<typename Format::Codes>(sums, blocks + Format::HEADER, BYTES, first, past);
    if constexpr (!ARE_SHARED<Format>) {
      expand_slice<Format>(expanded_, blocks, count);
      multiply<Shared<Format>>(sums, expanded_, GROUPS_PER_BLOCK<Format> * Shared<Format>::BYTES, first, past);
    }
  }

  template <class Codes> void multiply(float* sums, const char* codes, size_t block_bytes, int first, int past) {
    using Kind = Group<Format::GROUP, Format::CENTRE == 0, Format::HAS_LEAST>;
    constexpr size_t AHEAD = PANEL_BLOCK_BYTES<Format> / GROUPS_PER_BLOCK<Format>;
    const int begin = first % Format::BLOCK / Format::GROUP, past_group = begin + (past - first) / Format::GROUP;
    const size_t group_bytes = GROUPS_PER_BLOCK<Format> == 1 ? block_bytes : Codes::BYTES;
    SliceGroups slice{codes + begin * Format::GROUP / Codes::INPUTS * Codes::BYTES, group_bytes, scales_.scale[begin], scales_.least[Format::HAS_LEAST ? begin : 0],
                      nullptr, AHEAD, begin, past_group};
    for_blocks<F>(rows_, [&](auto rows, int from, int block, int blocks) {
      const int64_t row = first_row_ + from;
      const RowBlock x{x_.codes + row * x_.stride + (first - skipped_) * CODE_BYTES<F>,
                       x_.groups + row * x_.groups_per_row + (first - skipped_) / ROW_GROUP, x_.stride, x_.groups_per_row * sizeof(RowGroup)};
      // Each block prefetches its share of the next slice, so that memory and arithmetic overlap.
      slice.ahead_bytes = AHEAD / blocks;
      slice.ahead = PREFETCHES_ALONE || blocks > 1 ? next_ + begin * AHEAD + (past_group - begin) * slice.ahead_bytes * block : nullptr;
      if constexpr (rows <= UNPACKED_ROWS<F, Codes>) add_groups<F, Codes, Kind, rows>(sums + from * PANEL, x, slice);
      else __builtin_trap();  // the rows would be left out
    });
  }

  const BlockRows& x_;
  const char* next_ = nullptr;  // the blocks after those of the slice
  int skipped_, first_row_, rows_;
  SliceScales<Format> scales_;
  alignas(64) char expanded_[ARE_SHARED<Format> ? 64 : SLICE_INPUTS * PANEL];
};

// Up to BLOCK_SLAB rows of `of`, from its row `first` on.
template <class F, class Format>
void multiply_panel(const GemmBlocksParams& params, const BlockRows& x, const PanelRows& of, int first, int rows) {
  const GemmParams& p = params.gemm;
  alignas(64) float sums[BLOCK_SLAB<F> * PANEL];
  SegmentSums<BLOCK_SLAB<F>> segments;
  const int skipped = (int)params.skipped, blocks = ceil_div(skipped + p.inputs, Format::BLOCK), length = p.inputs / p.segments;
  SlabProduct<F, Format> slab(x, skipped, of.first_row + first, rows);
  const char* panel = (const char*)p.weight + (size_t)of.panel * blocks * PANEL_BLOCK_BYTES<Format>;
  for (int s = 0; s < p.segments; s++) {
    std::fill_n(sums, rows * PANEL, 0.0f);
    slab.add(sums, panel, skipped + s * length, skipped + (s + 1) * length);
    segments.take(s, 0, rows, PANEL, [&](int m, int c, int) { return load(sums + m * PANEL + c); });
  }
  segments.finish(p, of, first, rows);
}

template <class F, class Format> void multiply_by(Pool* pool, const GemmBlocksParams& params, const ProductRows& rows) {
  constexpr int SLAB = BLOCK_SLAB<F>;
  BlockRows x;
  with_element(params.x_dtype, [&](auto element) {
    x = quantize_blocks<RowsOf<F>, decltype(element)>(pool, params.gemm, rows.total(), Format::CENTRE, Format::GROUP < ROW_GROUP);
  });
  for_panels<F>(pool, params.gemm, rows, [&](const PanelRows& of) {
    for (int first = 0; first < of.rows; first += SLAB) multiply_panel<F, Format>(params, x, of, first, std::min(SLAB, of.rows - first));
  });
}

template <class Format> void multiply(Pool* pool, const GemmBlocksParams& params, const ProductRows& rows) {
  if (!rows.total()) return;
  const auto multiply_rows = rows.most() == 1 ? multiply_by<OneRow<Format>, Format> : multiply_by<Rows<Format>, Format>;
  multiply_rows(pool, params, rows);
}

template <class Format> void dense(Pool* pool, const GemmBlocksParams& p) { multiply<Format>(pool, p, ProductRows(p.gemm.rows)); }
template <class Format> void of_experts(Pool* pool, const ExpertGemmBlocksParams& p) {
  multiply<Format>(pool, p.product, ProductRows(p.slices));
}

}  // namespace

#define EXPORT(Format, name) \
  void gemm_##name(Pool* pool, const GemmBlocksParams* p) { dense<Format>(pool, *p); } \
  void expert_gemm_##name(Pool* pool, const ExpertGemmBlocksParams* p) { of_experts<Format>(pool, *p); }
EACH_BLOCK_FORMAT(EXPORT)

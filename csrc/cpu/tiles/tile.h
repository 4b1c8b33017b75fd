// The one microkernel: a few rows of activations times a panel of weights, K innermost, one accumulator per output.
//
// A "word" is 32 bits along K: two bfloat16, one float or four int8. Weights are stored in panels of 64 outputs: for each
// word of K, the words of the 64 outputs are adjacent. A step of K is then a few contiguous vector loads, one broadcast per
// row, and rows x vectors dot instructions.
//
//   panel   [words][PANEL]   words of weights, 256 bytes per step of K
//   x       [rows][words]    words of activations, `x_stride` bytes between rows
//   out     [rows][PANEL]    accumulators: float, or int32_t for Int8
//
// Tile: MOST_ROWS x strip_vectors(rows) vectors of accumulators stay in registers; a panel wider than a strip (AVX2,
// portable) is read strip by strip. The order of additions of an output is the order of K, so its bits depend only on its
// row and its weights: not on the number of rows computed with it, nor on threads.
//
// The products are not inlined (`noipa`): inlined into a caller with constant strides, gcc 12 puts accumulators on the
// stack, which makes them five times slower. scripts/kernel_speed/check_spills.py checks the built library for this.
#pragma once
#include <utility>

#include "isa/isa.h"

constexpr int PANEL = 64;
constexpr int WORD_BYTES = 4;
constexpr size_t STEP_BYTES = (size_t)PANEL * WORD_BYTES;  // of a panel, per word of K
constexpr int PANEL_VECTORS = PANEL / LANES;

// 16-bit weights times float rows: of two inputs in a word the odd one is multiplied first. Weights are widened when they
// are loaded, activations once for all panels.
struct Fp16 : Fp32 {};
struct WideBf16 : Fp32 {  // the bits of Bf16
  static I32 half(I32 words, bool odd) { return odd ? odd_half(words) : even_half(words); }
};

// The layout of the operands of a word of K: consecutive vectors of weights, and one word per row.
template <class F> struct WordLayout {
  static constexpr int PARTS = 1;  // of a word, multiplied separately
  static constexpr size_t STEP = STEP_BYTES;  // of a panel, per word
  static constexpr int X_BYTES = WORD_BYTES;
  static constexpr size_t x(int) { return 0; }
  static typename F::Weights weights(const char* strip, int vector, int) { return F::weights(strip + vector * sizeof(I32)); }
};
// Rows have two numbers per word, the even one first; the odd one is multiplied first.
struct WideLayout {
  static constexpr int PARTS = 2;
  static constexpr size_t STEP = STEP_BYTES;
  static constexpr int X_BYTES = 2 * WORD_BYTES;
  static constexpr size_t x(int part) { return part == 0 ? WORD_BYTES : 0; }
};
// Weights are words, of which one half after the other is widened.
template <class F> requires requires { F::half(I32{}, true); }
struct WordLayout<F> : WideLayout {
  static I32 weights(const char* strip, int vector, int part) { return F::half(load_words(strip + vector * sizeof(I32)), part == 0); }
};
// Weights have 64 bytes per 16 outputs: the odd inputs, then the even ones.
template <> struct WordLayout<Fp16> : WideLayout {
  static constexpr int GROUP = 16, VECTORS = GROUP / LANES;  // of outputs
  static constexpr size_t offset(int vector, int part) {
    return vector / VECTORS * GROUP * WORD_BYTES + (part * GROUP + vector % VECTORS * LANES) * 2;
  }
  static I32 weights(const char* strip, int vector, int part) { return (I32)load_fp16(strip + offset(vector, part)); }
};
// Weights that were widened before: of each word the odd inputs of a panel, then the even ones.
struct Widened : Fp32 {};
template <> struct WordLayout<Widened> : WideLayout {
  static constexpr size_t STEP = 2 * STEP_BYTES;
  static I32 weights(const char* strip, int vector, int part) { return load_words(strip + part * STEP_BYTES + vector * sizeof(I32)); }
};
// The most rows of a tile.
template <class F> constexpr int MOST_ROWS = sizeof(typename F::Weights) > sizeof(I32) ? MAX_SPLIT_ROWS : MAX_ROWS;
template <class F> requires requires { F::MOST_ROWS; } constexpr int MOST_ROWS<F> = F::MOST_ROWS;

template <int ROWS> constexpr int STRIP = strip_vectors(ROWS);
template <int ROWS> constexpr int STRIPS = PANEL_VECTORS / STRIP<ROWS>;

// One word of K: acc[m][v] += row m's word at x * weights(v). Rows or vectors, whichever are fewer, are kept in registers.
// between(i) is called in between, for each i < max(ROWS, N).
template <class F, int ROWS, int N, class Weights, class Between>
inline void step(typename F::Acc (&acc)[ROWS][N], const char* x, size_t x_stride, Weights weights, Between between) {
  if constexpr (ROWS < N) {
    typename F::Row b[ROWS];
    EACH(m, ROWS) b[m] = F::row(x + m * x_stride);
    EACH(v, N) {
      const typename F::Weights w = weights(v);
      EACH(m, ROWS) acc[m][v] = F::dot(acc[m][v], w, b[m]);
      between(v);
    }
  } else {
    typename F::Weights w[N];
    EACH(v, N) w[v] = weights(v);
    EACH(m, ROWS) {
      const typename F::Row b = F::row(x + m * x_stride);
      EACH(v, N) acc[m][v] = F::dot(acc[m][v], w[v], b);
      between(m);
    }
  }
}

constexpr int EVENLY = -1;  // of cache lines, see tile

// acc += x * one strip of a panel over `words` words of K. LINES cache lines are prefetched per word, from `ahead` on: into
// the first level if LINES is all four lines of a word, because they are then needed next, otherwise into the second; EVENLY:
// as many as `ahead_bytes` per word are. Words of x are X_STEP bytes apart.
template <class F, int ROWS, int LINES = 0, int X_STEP = WordLayout<F>::X_BYTES>
inline void tile(typename F::Acc (&acc)[ROWS][STRIP<ROWS>], const char* x, size_t x_stride, const char* strip, int words,
                 const char* ahead = nullptr, size_t ahead_bytes = 0) {
  using Layout = WordLayout<F>;
  constexpr int N = STRIP<ROWS>;
  const char* until = ahead;
  EACH(m, ROWS) EACH(v, N) opaque(acc[m][v]);  // gcc 12 would keep a copy of a known start value, and run out of registers
#pragma GCC unroll 1
  for (int k = 0; k < words; k++, strip += Layout::STEP, x += X_STEP, ahead += LINES == EVENLY ? 0 : LINES * 64) {
    if constexpr (LINES == EVENLY)
      for (until += ahead_bytes; ahead < until; ahead += 64) prefetch<2>(ahead);
    EACH(part, Layout::PARTS) {
      const auto weights = [&](int v) { return Layout::weights(strip, v, part); };
      step<F, ROWS, N>(acc, x + Layout::x(part), x_stride, weights, [&](int i) {
        if (LINES < 4 && Layout::PARTS == 1 && i < LINES) prefetch<2>(ahead + i * 64);  // spread over the step, they cost nothing
      });
    }
    if constexpr (LINES == 4) EACH(line, LINES) prefetch<1>(ahead + line * 64);
    else if constexpr (Layout::PARTS > 1) EACH(line, LINES) prefetch<2>(ahead + line * 64);  // between parts, gcc 12 spills
  }
}

inline F32 read(const float* p) { return load(p); }
inline I32 read(const int32_t* p) { return load_words(p); }
inline void write(float* p, F32 x) { store(p, x); }
inline void write(int32_t* p, I32 x) { store_words(p, x); }

enum class Start { ZERO, ADD, SCALE };  // out = product; out += product; out[m] = out[m] * keep[m] + product

// One strip of `product` below.
template <class F, int ROWS, int LINES, Start START, class Out>
[[gnu::noipa]] void strip_product(Out* out, size_t out_stride, const float* keep, const char* x, size_t x_stride,
                                  const char* strip, int words, const char* ahead, size_t ahead_bytes) {
  constexpr int N = STRIP<ROWS>;
  typename F::Acc acc[ROWS][N] = {};
  if constexpr (START != Start::ZERO) EACH(m, ROWS) EACH(v, N) acc[m][v] = read(out + m * out_stride + v * LANES);
  if constexpr (START == Start::SCALE) EACH(m, ROWS) EACH(v, N) acc[m][v] *= splat((Out)keep[m]);
  tile<F, ROWS, LINES>(acc, x, x_stride, strip, words, ahead, ahead_bytes);
  EACH(m, ROWS) EACH(v, N) write(out + m * out_stride + v * LANES, acc[m][v]);
}

// out[ROWS][PANEL] = x * panel, or as START says, with `keep` for SCALE. `out_stride` in elements, `x_stride` in bytes.
template <class F, int ROWS, Start START = Start::ZERO, class Out>
inline void product(Out* out, size_t out_stride, const char* x, size_t x_stride, const char* panel, int words,
                    const float* keep = nullptr) {
  for (int s = 0; s < STRIPS<ROWS>; s++)
    strip_product<F, ROWS, 0, START>(out + s * STRIP<ROWS> * LANES, out_stride, keep, x, x_stride,
                                     panel + s * STRIP<ROWS> * sizeof(I32), words, nullptr, 0);
}

// Calls f(integral_constant<rows>) for a number of rows known at run time, 1..MOST.
template <class Fn, int... R> inline void with_rows(int rows, Fn f, std::integer_sequence<int, R...>) {
  ((rows == R + 1 ? f(std::integral_constant<int, R + 1>{}) : void()), ...);
}
template <int MOST, class Fn> inline void with_rows(int rows, Fn f) {
  with_rows(rows, f, std::make_integer_sequence<int, MOST>{});
}

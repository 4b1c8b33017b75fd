// The one microkernel: a few rows of activations times a panel of weights, K innermost, one accumulator per output.
//
// A "word" is 32 bits along K: two bfloat16, one float or four int8. Weights come in panels of 64 outputs: for each word
// of K, the words of the 64 outputs side by side. A step of K is then a few contiguous vector loads, one broadcast a row
// and rows x vectors dot instructions.
//
//   panel   [words][PANEL]   words of weights, 256 bytes a step of K
//   x       [rows][words]    words of activations, `x_stride` bytes between rows
//   out     [rows][PANEL]    accumulators: float, or int32_t for Int8
//
// Tile: MAX_ROWS x strip_vectors(rows) vectors of accumulators stay in registers; a panel wider than a strip (AVX2,
// portable) is passed strip by strip. The order of additions of an output is the order of K and nothing else, so its
// bits depend on its row and its weights alone: not on how many rows are computed beside it, nor on threads.
//
// The products are kept out of line (`noipa`): inlined into a caller with constant strides, gcc 12 puts accumulators on
// the stack, which costs a factor of five. scripts/check_spills.py looks for that in the built library.
#pragma once
#include <utility>

#include "isa.h"

constexpr int PANEL = 64;
constexpr int WORD_BYTES = 4;
constexpr size_t STEP_BYTES = (size_t)PANEL * WORD_BYTES;  // of a panel, for one word of K
constexpr int PANEL_VECTORS = PANEL / LANES;

template <int ROWS> constexpr int STRIP = strip_vectors(ROWS);
template <int ROWS> constexpr int STRIPS = PANEL_VECTORS / STRIP<ROWS>;

// acc += x * one strip of a panel over `words` words of K. LINES cache lines from `ahead` on are prefetched a word.
template <class F, int ROWS, int LINES = 0>
inline void tile(typename F::Acc (&acc)[ROWS][STRIP<ROWS>], const char* x, size_t x_stride, const char* strip, int words,
                 const char* ahead = nullptr) {
  constexpr int N = STRIP<ROWS>;
  typename F::Acc a[ROWS][N];
  EACH(m, ROWS) EACH(v, N) a[m][v] = acc[m][v];
#pragma GCC unroll 2
  for (int k = 0; k < words; k++) {
    typename F::Weights w[N];
    EACH(v, N) w[v] = F::weights(strip + (size_t)k * STEP_BYTES + v * sizeof(I32));
    EACH(line, LINES) prefetch<LINES == 4 ? 1 : 2>(ahead + ((size_t)k * LINES + line) * 64);
    EACH(m, ROWS) {
      const typename F::Row b = F::row(x + m * x_stride + (size_t)k * WORD_BYTES);
      EACH(v, N) a[m][v] = F::dot(a[m][v], w[v], b);
    }
  }
  EACH(m, ROWS) EACH(v, N) acc[m][v] = a[m][v];
}

inline F32 read(const float* p) { return load(p); }
inline I32 read(const int32_t* p) { return load_words(p); }
inline void write(float* p, F32 x) { store(p, x); }
inline void write(int32_t* p, I32 x) { store_words(p, x); }

// One strip of `product` below. ADD: out[m] is first multiplied by keep[m] (nullptr: by 1), else it is overwritten.
template <class F, int ROWS, int LINES, bool ADD, class Out>
[[gnu::noipa]] void strip_product(Out* out, size_t out_stride, const float* keep, const char* x, size_t x_stride,
                                  const char* strip, int words, const char* ahead) {
  constexpr int N = STRIP<ROWS>;
  typename F::Acc acc[ROWS][N] = {};
  if constexpr (ADD) {
    EACH(m, ROWS) EACH(v, N) {
      acc[m][v] = read(out + m * out_stride + v * LANES);
      if (keep) acc[m][v] *= splat((Out)keep[m]);
    }
  }
  tile<F, ROWS, LINES>(acc, x, x_stride, strip, words, ahead);
  EACH(m, ROWS) EACH(v, N) write(out + m * out_stride + v * LANES, acc[m][v]);
}

// out[ROWS][PANEL] = x * panel, or += with ADD (see strip_product). `out_stride` in elements, `x_stride` in bytes.
template <class F, int ROWS, bool ADD = false, class Out>
inline void product(Out* out, size_t out_stride, const char* x, size_t x_stride, const char* panel, int words,
                    const float* keep = nullptr) {
  for (int s = 0; s < STRIPS<ROWS>; s++)
    strip_product<F, ROWS, 0, ADD>(out + s * STRIP<ROWS> * LANES, out_stride, keep, x, x_stride,
                                   panel + s * STRIP<ROWS> * sizeof(I32), words, nullptr);
}

// Calls f(integral_constant<rows>) for a number of rows known at run time, 1..MAX_ROWS.
template <class Fn, int... R> inline void with_rows(int rows, Fn f, std::integer_sequence<int, R...>) {
  ((rows == R + 1 ? f(std::integral_constant<int, R + 1>{}) : void()), ...);
}
template <class Fn> inline void with_rows(int rows, Fn f) {
  with_rows(rows, f, std::make_integer_sequence<int, MAX_ROWS>{});
}

// add_fp8_rows: a few rows times codes that are expanded in registers, by the tables of values.h.
//
// Algorithm  each output is one chain of dot products over K, as in tile.h; the values are those of expand_fp8
// Floor      bytes of codes / read bandwidth
#include "fp8/values.h"

namespace {
[[maybe_unused]] constexpr int AHEAD_BYTES = 16384;
}

#if defined(__AVX512F__)
namespace {

template <int ROWS, bool ONE_SCALE>
[[gnu::noipa, WITH_VBMI]] void add_rows(float* out, const char* x, size_t x_stride, const char* codes, int quads, const float* scales) {
  constexpr int N = PANEL_VECTORS;
  const ScaledMagnitudes table(ONE_SCALE ? scales[0] : 1.0f);
  F32 sums[ROWS][N];
  EACH(m, ROWS) EACH(v, N) sums[m][v] = load(out + m * PANEL + v * LANES);
#pragma GCC unroll 1
  for (int q = 0; q < quads; q++, codes += STEP_BYTES, x += QUAD_WORDS * WORD_BYTES) {
    Bf16::Row rows[ROWS][QUAD_WORDS];
    EACH(m, ROWS) EACH(i, QUAD_WORDS) rows[m][i] = Bf16::row(x + m * x_stride + i * WORD_BYTES);
    fetch_codes<1>(codes, AHEAD_BYTES);
    EACH(v, N) {
      I32 words[QUAD_WORDS];
      table.words(load_words(codes + v * sizeof(I32)), words);
      EACH(i, QUAD_WORDS) {
        const Bf16::Weights w = Bf16::weights(ONE_SCALE ? words[i] : scaled_word(words[i], load(scales + v * LANES)));
        EACH(m, ROWS) sums[m][v] = Bf16::dot(sums[m][v], w, rows[m][i]);
      }
    }
  }
  EACH(m, ROWS) EACH(v, N) store(out + m * PANEL + v * LANES, sums[m][v]);
}

}  // namespace

int fp8_rows_in_registers() { return !has_vbmi() ? 0 : WIDENS_BF16 ? 1 : MOST_FP8_ROWS; }

void add_fp8_rows(float* out, int rows, const char* x, size_t x_stride, const char* codes, int quads, const float* scales) {
  EACH(line, 4) prefetch<1>(scales + PANEL + line * LANES);  // of the next group
  constexpr int MOST = WIDENS_BF16 ? 1 : MOST_FP8_ROWS, MOST_SCALED = std::min(MOST, 2);  // scales need registers, too
  if (is_one_scale(scales))
    return with_rows<MOST>(rows, [&](auto n) { add_rows<n, true>(out, x, x_stride, codes, quads, scales); });
  for (int m = 0; m < rows; m += MOST_SCALED)
    with_rows<MOST_SCALED>(std::min(MOST_SCALED, rows - m), [&](auto n) {
      add_rows<n, false>(out + m * PANEL, x + m * x_stride, x_stride, codes, quads, scales);
    });
}
#else
int fp8_rows_in_registers() { return 0; }
void add_fp8_rows(float*, int, const char*, size_t, const char*, int, const float*) {}
#endif

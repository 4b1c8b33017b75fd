// expand_fp8: codes of e4m3 (a sign, 4 bits of exponent with bias 7, 3 of fraction; no infinities) to words of bfloat16.
//
// Algorithm  weight = bfloat16(float(code) * scale): one product in float, rounded once to nearest even. This is how a
//            checkpoint is dequantized, so a product has the bits of the dequantized weight's. Codes of NaN, and scales
//            with which a value could be denormal or infinite, are not packed (workers/backends/cpu/products/fp8_product.py).
//            With VBMI the 128 magnitudes, times the scale if all outputs of the panel share it, are a table of bytes in
//            four registers (values.h). With AVX2 alone a table has 16 fractions, for each output or for all (tables.h).
// Shapes     as in fp8.h; a word of bfloat16 is two inputs, the even one low
// Floor      bytes of codes / read bandwidth
#include "fp8/tables.h"
#include "fp8/values.h"

namespace {

constexpr int AHEAD_BYTES = 8192;  // into the second level: the first is full of words

[[gnu::noipa]] void expand(char* out, const char* codes, int quads, const float* scales) {
  for (int q = 0; q < quads; q++, codes += STEP_BYTES, out += QUAD_WORDS * STEP_BYTES) {
    fetch_codes<2>(codes, AHEAD_BYTES);
    EACH(v, PANEL_VECTORS) {
      const I32 four = load_words(codes + v * sizeof(I32));
      const F32 scale = load(scales + v * LANES);
      EACH(i, QUAD_WORDS) {
        const I32 word = rounded_word(values(four, 2 * i) * scale, values(four, 2 * i + 1) * scale);
        store_words(out + i * STEP_BYTES + v * sizeof(I32), word);
      }
    }
  }
}

#if defined(__AVX2__)
constexpr int EIGHTS = PANEL / 8;

// The same if the first scale is that of all outputs.
[[gnu::noipa]] void expand_by_bytes(char* out, const char* codes, int quads, const float* scales) {
  ByteTables tables[LANE_WORDS];
  make_tables(tables, _mm256_set1_ps(scales[0]));
  for (int q = 0; q < quads; q++, codes += STEP_BYTES, out += QUAD_WORDS * STEP_BYTES) {
    fetch_codes<2>(codes, AHEAD_BYTES);
    EACH(v, EIGHTS) {
      __m256i first, last;  // each has both words of two quads of a lane
      tables[0].look_up(_mm256_loadu_si256((const __m256i*)codes + v), first, last);
      _mm256_storeu_ps((float*)out + v * 8, _mm256_shuffle_ps((__m256)first, (__m256)last, 0x88));
      _mm256_storeu_ps((float*)(out + STEP_BYTES) + v * 8, _mm256_shuffle_ps((__m256)first, (__m256)last, 0xdd));
    }
  }
}

constexpr int LANE_QUADS = 4;  // of an output, which are looked up together

// The same with any scales, for a multiple of LANE_QUADS.
[[gnu::noipa]] void expand_by_lanes(char* out, const char* codes, int quads, const float* scales) {
  ByteTables tables[EIGHTS][LANE_WORDS];
  for (int v = 0; v < EIGHTS; v++) make_tables(tables[v], (F256)_mm256_loadu_ps(scales + v * 8));
  for (int q = 0; q < quads; q += LANE_QUADS, codes += LANE_QUADS * STEP_BYTES, out += LANE_QUADS * QUAD_WORDS * STEP_BYTES) {
    for (int i = 0; i < LANE_QUADS; i++) fetch_codes<2>(codes + i * STEP_BYTES, AHEAD_BYTES);
    for (int v = 0; v < EIGHTS; v++) {
      const auto word = [v](auto* base, int i) { return (__m256i*)(base + i * STEP_BYTES) + v; };
      __m256i rows[LANE_QUADS], first[LANE_WORDS], last[LANE_WORDS];
      EACH(i, LANE_QUADS) rows[i] = _mm256_loadu_si256(word((char*)codes, i));
      transpose(rows);
      EACH(i, LANE_WORDS) tables[v][i].look_up(rows[i], first[i], last[i]);
      transpose(first), transpose(last);
      EACH(i, LANE_WORDS) _mm256_storeu_si256(word(out, i), first[i]);
      EACH(i, LANE_WORDS) _mm256_storeu_si256(word(out, LANE_WORDS + i), last[i]);
    }
  }
}
#endif

#if defined(__AVX512F__)
// The same as expand; with ONE_SCALE the first scale is that of all outputs.
template <bool ONE_SCALE>
[[gnu::noipa, WITH_VBMI]] void expand_by_table(char* out, const char* codes, int quads, const float* scales) {
  const ScaledMagnitudes table(ONE_SCALE ? scales[0] : 1.0f);
  for (int q = 0; q < quads; q++, codes += STEP_BYTES, out += QUAD_WORDS * STEP_BYTES) {
    fetch_codes<2>(codes, AHEAD_BYTES);
    EACH(v, PANEL_VECTORS) {
      I32 words[QUAD_WORDS];
      table.words(load_words(codes + v * sizeof(I32)), words);
      EACH(i, QUAD_WORDS) {
        const I32 word = ONE_SCALE ? words[i] : scaled_word(words[i], load(scales + v * LANES));
        store_words(out + i * STEP_BYTES + v * sizeof(I32), word);
      }
    }
  }
}
#endif

}  // namespace

void expand_fp8(char* out, const char* codes, int quads, const float* scales) {
#if defined(__AVX512F__)
  if (has_vbmi())
    return is_one_scale(scales) ? expand_by_table<true>(out, codes, quads, scales)
                                : expand_by_table<false>(out, codes, quads, scales);
#endif
#if defined(__AVX2__)
  if (is_one_scale(scales)) return expand_by_bytes(out, codes, quads, scales);
  const int whole = quads / LANE_QUADS * LANE_QUADS;
  if (whole) expand_by_lanes(out, codes, whole, scales);
  out += whole * QUAD_WORDS * STEP_BYTES, codes += whole * STEP_BYTES, quads -= whole;
#endif
  expand(out, codes, quads, scales);
}

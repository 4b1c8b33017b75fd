// expand_fp8: codes of e4m3 (a sign, 4 bits of exponent with bias 7, 3 of fraction; no infinities) to words of bfloat16.
//
// Algorithm  weight = bfloat16(float(code) * scale): one product in float, rounded once to nearest even. This is how a
//            checkpoint is dequantized, so a product has the bits of the dequantized weight's. Codes of NaN, and scales
//            with which a value could be denormal or infinite, are not packed (workers/backends/cpu/products/fp8_product.py).
//            With VBMI the 128 magnitudes, times the scale if the panel's outputs have one, are a table of bytes in
//            four registers (values.h); with AVX2 a table of fractions is shuffled if the outputs have one scale,
//            otherwise magnitudes are multiplied as raised.h says.
// Shapes     as in fp8.h; a word of bfloat16 is two inputs, the even one low
// Floor      bytes of codes / read bandwidth
#include "fp8/raised.h"
#include "fp8/values.h"

namespace {

constexpr int AHEAD_BYTES = 8192;  // into the second level: the first is full of words

#if defined(__AVX2__) && !defined(__AVX512F__)
[[gnu::noipa]] void expand(char* out, const char* codes, int quads, const float* scales) {
  for (int q = 0; q < quads; q++, codes += STEP_BYTES, out += QUAD_WORDS * STEP_BYTES) {
    fetch_codes<2>(codes, AHEAD_BYTES);
    EACH(v, PANEL_VECTORS) {
      const I32 four = load_words(codes + v * sizeof(I32));
      const ScaleParts scale(load(scales + v * LANES));
      F32 values[CODES];
      RaisedCodes(four).values(scale.factor, values);
      const I32 negative = ~four ^ scale.flip;
      EACH(i, QUAD_WORDS) {
        const I32 signs = i == 0 ? negative << 16 : negative, word = (I32)values[2 * i] >> 16 | (I32)values[2 * i + 1];
        store_words(out + i * STEP_BYTES + v * sizeof(I32), word | (signs & (int32_t)0x80000000) | ((signs >> 8) & 0x8000));
      }
    }
  }
}
#else
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
#endif

#if defined(__AVX2__)
constexpr int FRACTIONS = 16;       // m or 8 + m
constexpr int EXPONENT_BITS = 0x78;  // of a code

// The same if the first scale is that of all outputs, and not 0. A magnitude is f * 2^-9 * 2^(e - 1), or with e = 0 f * 2^-9,
// and bfloat16(f * 2^-9 * scale) is a table for shuffles of bytes, to whose bits e - 1 is added above the fraction.
[[gnu::noipa]] void expand_by_shuffles(char* out, const char* codes, int quads, const float* scales) {
  alignas(32) uint16_t halves[FRACTIONS];
  for (int i = 0; i < FRACTIONS; i += LANES) {
    float fractions[LANES];
    for (int lane = 0; lane < LANES; lane++) fractions[lane] = (float)(i + lane);
    store_bf16(halves + i, load(fractions) * 0x1p-9f * splat(scales[0]));
  }
  uint8_t bytes[2][FRACTIONS];
  for (int i = 0; i < FRACTIONS; i++) {
    const int bits = halves[i] - (i < 8 ? 0 : 1 << 7);
    bytes[0][i] = (uint8_t)bits, bytes[1][i] = (uint8_t)(bits >> 8);
  }
  const auto repeated = [](const uint8_t* table) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)); };
  const __m256i low_bytes = repeated(bytes[0]), high_bytes = repeated(bytes[1]);
  const __m256i exponent = _mm256_set1_epi8(EXPONENT_BITS), fraction = _mm256_set1_epi8(7), lead = _mm256_set1_epi8(8);
  const __m256i sign = _mm256_set1_epi8((char)0x80), zero = _mm256_setzero_si256();
  for (int q = 0; q < quads; q++, codes += STEP_BYTES, out += QUAD_WORDS * STEP_BYTES) {
    fetch_codes<2>(codes, AHEAD_BYTES);
    EACH(at, (int)(STEP_BYTES / sizeof(__m256i))) {
      const __m256i four = _mm256_loadu_si256((const __m256i*)codes + at), raised = _mm256_and_si256(four, exponent);
      const __m256i index = _mm256_or_si256(_mm256_and_si256(four, fraction), _mm256_min_epu8(raised, lead));
      const __m256i low = _mm256_shuffle_epi8(low_bytes, index);
      const __m256i high = _mm256_xor_si256(_mm256_shuffle_epi8(high_bytes, index), _mm256_andnot_si256(four, sign));
      const __m256i first = _mm256_add_epi16(_mm256_unpacklo_epi8(low, high), _mm256_slli_epi16(_mm256_unpacklo_epi8(raised, zero), 4));
      const __m256i second = _mm256_add_epi16(_mm256_unpackhi_epi8(low, high), _mm256_slli_epi16(_mm256_unpackhi_epi8(raised, zero), 4));
      const __m256 a = (__m256)first, b = (__m256)second;  // each has both words of two quads of a lane
      _mm256_storeu_ps((float*)out + at * 8, _mm256_shuffle_ps(a, b, 0x88));
      _mm256_storeu_ps((float*)(out + STEP_BYTES) + at * 8, _mm256_shuffle_ps(a, b, 0xdd));
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
  if (is_one_scale(scales) && scales[0] != 0.0f) return expand_by_shuffles(out, codes, quads, scales);
#endif
  expand(out, codes, quads, scales);
}

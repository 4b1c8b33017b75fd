// The whole SIMD vocabulary of the CPU kernels. Every source is compiled once per instruction set, and includes exactly
// one of four bodies, chosen by the compiler's flags: AVX512 (F, BW, VL, DQ, VNNI, and BF16 or not), AVX2 with FMA, NEON,
// or portable GCC vector extensions.
//
// Each body defines
//   ISA_NAME, LANES          the library's name; the number of 32-bit elements in a vector (16, 8, 4)
//   F32, I32                 vectors of LANES float / int32_t: + - * / & | ^ << >> and comparisons work on them, and
//                            `(mask) ? a : b` selects; (I32)f and (F32)i reinterpret bits
//   load, store              of float*, unaligned;  load_words: of any 32-bit elements, as I32;  store_words
//   load_bf16, store_bf16    LANES bfloat16 <-> F32; stores round to nearest even, NaN stays NaN, denormals become zeros
//   F16                      a vector of LANES float16;  to_fp16 rounds to nearest even, NaN stays NaN;  from_fp16 is exact
//   load_fp16, store_fp16    LANES float16 <-> F32;  store_halves: an F16, unchanged
//   even_halves, odd_halves  of words of two float16, as F16
//   *_n                      the same for the first n of LANES elements (0 <= n <= LANES); the rest reads as 0, or is kept
//   splat                    one float or int32_t in every lane
//   opaque                   hides a vector's value from the compiler's optimizer, at no cost
//   fma, max, min, round     fma: a * b + c rounded once; round: to nearest even
//   add_product              adds a * b to an accumulator, rounded once like fma;  add_product_bf16: of bfloat16 factors
//   to_int, to_float         float -> int32_t to nearest even, and back
//   scaled                   x * 2^whole, for x in [0.5, 2) and an integer whole <= 0; 0 below 2^-126
//   sum, highest             over the lanes: halves, then halves of these; the last four as (0 + 2) + (1 + 3)
//   eights                   eight words from each of LANES / 4 addresses; x[0] gets the first four of each, x[1] the others
//   repeat_four              four words, repeated;  repeat_word: one word
//   look_up                  the bytes of a table of 16, at the index in each byte
//   interleave               alternates the 16-bit halves of two vectors: 2 * LANES in order, in two vectors
//   load_u8, load_s8         LANES uint8_t or int8_t as F32;  store_s8: the lanes saturated to int8_t
//   REGISTERS                the number of vector registers
//   MAX_ROWS, strip_vectors  register budget of the microkernel, see tile.h;  MAX_SPLIT_ROWS: for words split in two
//   WIDENS_BF16              whether many rows of bfloat16 are multiplied faster as float, see WideBf16 in tile.h
//   Bf16, Int8               multiply a 32-bit word of weights by a word of activations, see tile.h; Fp32 and the common
//                            parts are in words.h
//   Bf16::two_vectors        of bfloat16 at p and at p + WIDE, as words that `dot` adds in this order
//   WideInt8                 Int8, or what is faster for several rows, which `widen_sixteen` then widens to 16 bits
//   SmallCodes<MOST>         Int8, or what is faster for unsigned weights up to MOST: `whole` then makes sums of 32 bits of its own
//   Int8::OFFSET             what Int8 adds to a weight's code when it multiplies
//   Int4Codes, FloatCodes    nibbles to words of Bf16 weights, and to floats, see gemm/int4/int4.cpp
// All bodies give the same bits, except the bits of NaN: arithmetic is without denormals (float_mode.h), the odd element of
// a pair of bfloat16 is added first, and sums over lanes are defined on 16 lanes, whatever the size of a vector (Wide).
// Where two instruction sets could differ, AVX512 is the definition.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

constexpr int WIDE = 16;  // the lanes of a sum over lanes, see Wide

// A loop that must be unrolled before register allocation: only then do arrays of vectors live in registers.
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

// bfloat16 bits in the low halves, rounded as vcvtneps2bf16 does: denormals become zeros, NaN becomes quiet.
template <class Floats> inline auto bf16_bits(Floats x) {
  using Ints = decltype(x < x);
  const Ints magnitude = (Ints)x & 0x7fffffff;
  const Ints bits = (Ints)x & ((magnitude > 0x007fffff) | (int32_t)0x80000000);
  const Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return magnitude > 0x7f800000 ? bits >> 16 | 0x40 : rounded;
}

// 2^whole as a float, for whole from -126 to 127; 0 for -127.
template <class Ints> inline auto power_of_two(Ints whole) { return (whole + 127) << 23; }

inline int32_t word_at(const void* p) {  // unaligned, because rows of odd length start anywhere
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include "isa/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "isa/avx2.h"
#elif defined(__aarch64__) && !defined(PORTABLE)
#include "isa/neon.h"
#else
#include "isa/portable.h"
#endif

// Of the portable library, which few processors need: what would be compiled again for speed alone is not.
constexpr bool IS_COMPACT = LANES == 4 && REGISTERS == 16;
// Where gcc 12 needs other hints than on x86 to keep sums in registers.
constexpr bool IS_NEON = LANES == 4 && REGISTERS == 32;

// Sixteen lanes, in one or more vectors: element i of a sum is added to lane i % 16, and the lanes are then added like those
// of one AVX512 vector.
constexpr int WIDE_VECTORS = WIDE / LANES;
struct Wide {
  F32 part[WIDE_VECTORS] = {};
};
inline Wide load_wide(const float* p) {
  Wide x;
  EACH(v, WIDE_VECTORS) x.part[v] = load(p + v * LANES);
  return x;
}
inline float sum(const Wide& x) {
  if constexpr (WIDE_VECTORS == 1) return sum(x.part[0]);
  else if constexpr (WIDE_VECTORS == 2) return sum(x.part[0] + x.part[1]);
  else return sum((x.part[0] + x.part[2]) + (x.part[1] + x.part[3]));
}

// Alternates the lanes of two vectors: 2 * LANES in order, in the same two.
inline void alternate(F32& low, F32& high) {
  const F32 even = low, odd = high;
  [&]<int... i>(std::integer_sequence<int, i...>) {
    low = __builtin_shuffle(even, odd, I32{(i / 2 + i % 2 * LANES)...});
    high = __builtin_shuffle(even, odd, I32{(i / 2 + i % 2 * LANES + LANES / 2)...});
  }(std::make_integer_sequence<int, LANES>{});
}

inline F32 abs(F32 x) { return (F32)((I32)x & splat(0x7fffffff)); }

// Transposes four vectors of pieces of four words (`eights`): word l of piece k of x[v] becomes word v of piece k of x[l].
inline void transpose_fours(I32 (&x)[4]) {
  const auto shuffle = [](I32 a, I32 b, auto from) {  // lane i is lane from(i) of a followed by b
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return __builtin_shuffle(a, b, I32{from(i)...});
    }(std::make_integer_sequence<int, LANES>{});
  };
  const auto low_words = [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * LANES; };
  const auto high_words = [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * LANES + 2; };
  const auto low_halves = [](int i) { return i / 4 * 4 + i % 2 + i % 4 / 2 * LANES; };
  const auto high_halves = [](int i) { return i / 4 * 4 + i % 2 + i % 4 / 2 * LANES + 2; };
  const I32 a = shuffle(x[0], x[1], low_words), b = shuffle(x[0], x[1], high_words);
  const I32 c = shuffle(x[2], x[3], low_words), d = shuffle(x[2], x[3], high_words);
  x[0] = shuffle(a, c, low_halves), x[1] = shuffle(a, c, high_halves);
  x[2] = shuffle(b, d, low_halves), x[3] = shuffle(b, d, high_halves);
}

// 2^x by a polynomial of degree 6 (2e-9 relative, then float rounding); 2^-126 below that, 2^127.49 above.
inline F32 exp2(F32 x) {
  x = min(splat(127.49f), max(splat(-126.0f), x));  // in this order a NaN stays a NaN
  const F32 whole = round(x), part = x - whole;
  F32 power = splat(1.534580803e-4f);
  for (float c : {1.339993090e-3f, 9.618489072e-3f, 5.550328642e-2f, 2.402264625e-1f, 6.931471825e-1f, 1.0f})
    power = fma(power, part, splat(c));
  return (F32)((I32)power + (to_int(whole) << 23));
}

// e^x: whole multiples of ln 2 (in two parts, exact for large |x|) are subtracted, the rest is a power of two. The error is
// below 2 ulp between -87 and 88; beyond, it saturates like exp2.
inline F32 exp(F32 x) {
  constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
  x = min(max(x, splat(-87.33f)), splat(88.37f));
  const F32 whole = round(x * LOG2_E);
  const F32 part = fma(whole, splat(-LN2_LOW), fma(whole, splat(-LN2_HIGH), x));
  return (F32)((I32)exp2(part * LOG2_E) + (to_int(whole) << 23));
}

constexpr float LOG2E = 1.44269504088896341f;

// cap * tanh(x), where x is given as 2 * log2(e) * x: tanh(|x|) = (1 - e^(-2|x|)) / (1 + e^(-2|x|)), then the sign. Error
// below 2e-7 of cap.
inline F32 capped(F32 doubled, float cap) {
  const F32 shrunk = exp2(-abs(doubled));
  const F32 magnitude = splat(cap) * ((splat(1.0f) - shrunk) / (splat(1.0f) + shrunk));
  return (F32)((I32)magnitude | ((I32)doubled & splat((int32_t)0x80000000)));
}

// Prefetches the cache line at p into level 1 or 2; an address past the end of an allocation is harmless.
template <int LEVEL> inline void prefetch(const void* p) {
#if defined(__x86_64__)  // volatile, because gcc moves its own prefetches to one place, where they delay each other
  if constexpr (LEVEL == 1) asm volatile("prefetcht0 %0" : : "m"(*(const char*)p));
  else asm volatile("prefetcht1 %0" : : "m"(*(const char*)p));
#else
  __builtin_prefetch(p, 0, LEVEL == 1 ? 3 : 2);
#endif
}

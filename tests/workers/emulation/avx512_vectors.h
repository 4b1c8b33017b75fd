// AVX512's vectors on a processor with AVX2: what isa/avx512.h and fp8/values.h use of F, BW, VL, DQ, VNNI, VBMI and BF16.
//
// Read before any source, compiled for AVX2. Each function does what Intel's manual says of the instruction; gcc divides
// the arithmetic of its own 64-byte vectors in two. Inline assembly is replaced by functions of the instruction's name
// (avx512.py). What a function leaves undefined is set to ones, and an address that must be aligned is checked.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace emulated {

template <class T, int N> struct Vector {
  using Lanes [[gnu::vector_size(N * sizeof(T))]] = T;
};
template <class T, int N> using Lanes = typename Vector<T, N>::Lanes;

struct alignas(64) Halves {
  __m256i half[2];
};
template <class V> Halves apart(V x) { return std::bit_cast<Halves>(x); }
template <class V, class Half> V together(Half low, Half high) { return std::bit_cast<V>(Halves{{(__m256i)low, (__m256i)high}}); }

// f of the lower and of the upper halves.
template <class V, class F, class... Vs> V by_halves(F f, Vs... x) {
  return together<V>(f(apart(x).half[0]...), f(apart(x).half[1]...));
}

template <class To, class From, class V> auto converted(V x) {
  constexpr int N = sizeof(V) / sizeof(From);
  return __builtin_convertvector((Lanes<From, N>)x, Lanes<To, N>);
}

template <class T, int N, class F> auto each(F f) {
  Lanes<T, N> x;
  for (int i = 0; i < N; i++) x[i] = f(i);
  return x;
}

template <class T, class V> T lane(V x, int i) {
  T lanes[sizeof(V) / sizeof(T)];
  std::memcpy(lanes, &x, sizeof x);
  return lanes[i];
}

inline const void* aligned(const void* p) {
  if ((uintptr_t)p % 64) __builtin_trap();
  return p;
}

template <class V> V read(const void* p) {
  V x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline __m512 set1_ps(float x) { return each<float, 16>([=](int) { return x; }); }
inline __m512i set1_epi32(int32_t x) { return (__m512i)each<int32_t, 16>([=](int) { return x; }); }
inline __m512i set1_epi8(char x) { return (__m512i)each<char, 64>([=](int) { return x; }); }

inline __m512 loadu_ps(const void* p) { return read<__m512>(p); }
inline __m512i loadu_si512(const void* p) { return read<__m512i>(p); }
inline __m512i load_si512(const void* p) { return read<__m512i>(aligned(p)); }
inline void storeu_ps(void* p, __m512 x) { std::memcpy(p, &x, sizeof x); }
inline void storeu_si512(void* p, __m512i x) { std::memcpy(p, &x, sizeof x); }

template <class V, class T> V load_where(uint32_t mask, const T* p) {
  return (V)each<T, sizeof(V) / sizeof(T)>([=](int i) { return mask >> i & 1 ? p[i] : T{}; });
}
template <class T, class V> void store_where(T* p, uint32_t mask, V x) {
  T lanes[sizeof x / sizeof(T)];
  std::memcpy(lanes, &x, sizeof x);
  for (size_t i = 0; i < sizeof x / sizeof(T); i++)
    if (mask >> i & 1) p[i] = lanes[i];
}
inline __m512 maskz_loadu_ps(__mmask16 mask, const void* p) { return load_where<__m512>(mask, (const float*)p); }
inline __m512i maskz_loadu_epi32(__mmask16 mask, const void* p) { return load_where<__m512i>(mask, (const int32_t*)p); }
inline __m256i maskz_loadu_epi16(__mmask16 mask, const void* p) { return load_where<__m256i>(mask, (const int16_t*)p); }
inline void mask_storeu_ps(void* p, __mmask16 mask, __m512 x) { store_where((float*)p, mask, x); }
inline void mask_storeu_epi16(void* p, __mmask16 mask, __m256i x) { store_where((int16_t*)p, mask, x); }

inline __m512i cvtepu16_epi32(__m256i x) { return (__m512i)converted<int32_t, uint16_t>(x); }
inline __m512i cvtepu8_epi32(__m128i x) { return (__m512i)converted<int32_t, uint8_t>(x); }
inline __m512i cvtepi8_epi32(__m128i x) { return (__m512i)converted<int32_t, int8_t>(x); }
inline __m256i cvtepi32_epi16(__m512i x) { return (__m256i)converted<int16_t, int32_t>(x); }
inline __m128i cvtsepi32_epi8(__m512i x) {
  return (__m128i)each<int8_t, 16>([=](int i) {
    const int32_t value = lane<int32_t>(x, i);
    return (int8_t)(value < -128 ? -128 : value > 127 ? 127 : value);
  });
}
inline __m512 cvtepi32_ps(__m512i x) {
  return by_halves<__m512>([](__m256i half) { return _mm256_cvtepi32_ps(half); }, x);
}
inline __m512i cvtps_epi32(__m512 x) {
  return by_halves<__m512i>([](__m256i half) { return _mm256_cvtps_epi32((__m256)half); }, x);
}
inline __m512 cvtph_ps(__m256i x) {
  return together<__m512>(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
template <int ROUNDING> __m256i cvtps_ph(__m512 x) {
  const auto rounded = [&](int i) { return _mm256_cvtps_ph((__m256)apart(x).half[i], ROUNDING); };
  return _mm256_set_m128i(rounded(1), rounded(0));
}

inline uint16_t bf16_of(float x) {  // VCVTNEPS2BF16
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  if (magnitude < 0x00800000) return (uint16_t)(bits >> 16 & 0x8000);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline __m256i cvtneps_pbh(__m512 x) {
  return (__m256i)each<uint16_t, 16>([=](int i) { return bf16_of(x[i]); });
}
inline __m512i cvtne2ps_pbh(__m512 high, __m512 low) { return together<__m512i>(cvtneps_pbh(low), cvtneps_pbh(high)); }

inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  const auto fma = [](__m256i x, __m256i y, __m256i z) { return _mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z); };
  return by_halves<__m512>(fma, a, b, c);
}
inline __m512 max_ps(__m512 a, __m512 b) {
  return by_halves<__m512>([](__m256i x, __m256i y) { return _mm256_max_ps((__m256)x, (__m256)y); }, a, b);
}
inline __m512 min_ps(__m512 a, __m512 b) {
  return by_halves<__m512>([](__m256i x, __m256i y) { return _mm256_min_ps((__m256)x, (__m256)y); }, a, b);
}
template <int ROUNDING> __m512 roundscale_ps(__m512 x) {
  static_assert(ROUNDING >> 4 == 0, "to whole numbers");
  return by_halves<__m512>([](__m256i half) { return _mm256_round_ps((__m256)half, ROUNDING); }, x);
}
inline __m512 scalef_ps(__m512 x, __m512 power) {
  return each<float, 16>([=](int i) { return (float)std::scalbn((double)x[i], (int)std::floor(power[i])); });
}

template <class F> __m512i of_words(F f, __m512i x) { return by_halves<__m512i>(f, x); }
template <int N> __m512i slli_epi32(__m512i x) { return of_words([](__m256i half) { return _mm256_slli_epi32(half, N); }, x); }
template <int N> __m512i srli_epi32(__m512i x) { return of_words([](__m256i half) { return _mm256_srli_epi32(half, N); }, x); }
inline __m512i srli_epi16(__m512i x, int n) {
  return of_words([=](__m256i half) { return _mm256_srli_epi16(half, n); }, x);
}
inline __m512i shuffle_epi8(__m512i table, __m512i index) {
  return by_halves<__m512i>([](__m256i x, __m256i y) { return _mm256_shuffle_epi8(x, y); }, table, index);
}

template <class T> __m512i permuted(__m512i a, __m512i index, __m512i b) {
  constexpr int N = 64 / sizeof(T);
  T from[2 * N], at[N];
  std::memcpy(from, &a, 64), std::memcpy(from + N, &b, 64), std::memcpy(at, &index, 64);
  return (__m512i)each<T, N>([&](int i) { return from[at[i] % (2 * N)]; });
}
inline __m512i permutexvar_epi16(__m512i index, __m512i x) { return permuted<uint16_t>(x, index, x); }
inline __m512 permutexvar_ps(__m512i index, __m512 x) { return (__m512)permuted<uint32_t>((__m512i)x, index, (__m512i)x); }
inline __m512i permutex2var_epi16(__m512i a, __m512i index, __m512i b) { return permuted<uint16_t>(a, index, b); }
inline __m512i permutex2var_epi8(__m512i a, __m512i index, __m512i b) { return permuted<uint8_t>(a, index, b); }

template <int TABLE> __m512i ternarylogic_epi32(__m512i a, __m512i b, __m512i c) {
  __m512i x{};
  for (int i = 0; i < 8; i++)
    if (TABLE >> i & 1) x |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return x;
}
template <int FROM> __m512i shuffle_i32x4(__m512i a, __m512i b) {
  return (__m512i)each<int64_t, 8>([=](int i) { return (i < 4 ? a : b)[(FROM >> i / 2 * 2 & 3) * 2 + i % 2]; });
}
inline __m512i castsi256_si512(__m256i x) { return together<__m512i>(x, _mm256_set1_epi8(-1)); }
inline __m512i broadcast_i64x4(__m256i x) { return together<__m512i>(x, x); }
inline __m512i mask_broadcast_i64x4(__m512i before, __mmask8 mask, __m256i x) {
  return (__m512i)each<int64_t, 8>([=](int i) { return mask >> i & 1 ? x[i % 4] : before[i]; });
}
inline __m512i broadcast_i32x4(__m128i x) { return broadcast_i64x4(_mm256_broadcastsi128_si256(x)); }
template <int HALF> __m512i inserti64x4(__m512i x, __m256i half) {
  return HALF ? together<__m512i>(apart(x).half[0], half) : together<__m512i>(half, apart(x).half[1]);
}

// Instructions that are inline assembly: the accumulator and two factors.
inline __m512 vfmadd231ps(__m512 sum, __m512 a, __m512 b) { return fmadd_ps(a, b, sum); }
template <class I32> __m512 vdpbf16ps(__m512 sum, I32 w, I32 x) {  // in the mode of isa/float_mode.h
  const I32 odd = {}, high = odd + (int32_t)0xffff0000;
  return fmadd_ps((__m512)(w << 16), (__m512)(x << 16), fmadd_ps((__m512)(w & high), (__m512)(x & high), sum));
}
template <class I32> I32 vpdpbusd(I32 sum, I32 w, I32 x) {  // unsigned times signed bytes, of which no sum saturates
  const auto dot = [](__m256i bytes, __m256i signed_bytes) {
    const __m256i even = _mm256_and_si256(bytes, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(bytes, 8);
    const __m256i signed_even = _mm256_srai_epi16(_mm256_slli_epi16(signed_bytes, 8), 8);
    const __m256i signed_odd = _mm256_srai_epi16(signed_bytes, 8);
    return _mm256_add_epi32(_mm256_madd_epi16(even, signed_even), _mm256_madd_epi16(odd, signed_odd));
  };
  return sum + by_halves<I32>(dot, w, x);
}

}  // namespace emulated

#define _mm256_mask_storeu_epi16 emulated::mask_storeu_epi16
#define _mm256_maskz_loadu_epi16 emulated::maskz_loadu_epi16
#define _mm512_broadcast_i32x4 emulated::broadcast_i32x4
#define _mm512_broadcast_i64x4 emulated::broadcast_i64x4
#define _mm512_castsi256_si512 emulated::castsi256_si512
#define _mm512_cvtepi32_epi16 emulated::cvtepi32_epi16
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 emulated::cvtepu8_epi32
#define _mm512_cvtne2ps_pbh emulated::cvtne2ps_pbh
#define _mm512_cvtneps_pbh emulated::cvtneps_pbh
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, rounding) emulated::cvtps_ph<(rounding)>(x)
#define _mm512_cvtsepi32_epi8 emulated::cvtsepi32_epi8
#define _mm512_fmadd_ps emulated::fmadd_ps
#undef _mm512_inserti64x4
#define _mm512_inserti64x4(x, half, at) emulated::inserti64x4<(at)>(x, half)
#define _mm512_load_si512 emulated::load_si512
#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_loadu_si512 emulated::loadu_si512
#define _mm512_mask_broadcast_i64x4 emulated::mask_broadcast_i64x4
#define _mm512_mask_storeu_ps emulated::mask_storeu_ps
#define _mm512_maskz_loadu_epi32 emulated::maskz_loadu_epi32
#define _mm512_maskz_loadu_ps emulated::maskz_loadu_ps
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_permutex2var_epi16 emulated::permutex2var_epi16
#define _mm512_permutex2var_epi8 emulated::permutex2var_epi8
#define _mm512_permutexvar_epi16 emulated::permutexvar_epi16
#define _mm512_permutexvar_ps emulated::permutexvar_ps
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(x, rounding) emulated::roundscale_ps<(rounding)>(x)
#define _mm512_scalef_ps emulated::scalef_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_shuffle_epi8 emulated::shuffle_epi8
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, from) emulated::shuffle_i32x4<(from)>(a, b)
#undef _mm512_slli_epi32
#define _mm512_slli_epi32(x, n) emulated::slli_epi32<(n)>(x)
#define _mm512_srli_epi16 emulated::srli_epi16
#undef _mm512_srli_epi32
#define _mm512_srli_epi32(x, n) emulated::srli_epi32<(n)>(x)
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_storeu_si512 emulated::storeu_si512
#undef _mm512_ternarylogic_epi32
#define _mm512_ternarylogic_epi32(a, b, c, table) emulated::ternarylogic_epi32<(table)>(a, b, c)

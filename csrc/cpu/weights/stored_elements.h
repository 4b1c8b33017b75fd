// Elements of checkpoints, one by one, as stored in a file: at any address, in any of three float formats. Written without
// vectors and without arithmetic on subnormal numbers, so that every library and every thread reads the same numbers.
#pragma once
#include <cstdint>
#include <cstring>

// The elements of an array, numbered as in workers/kernels/cpu/loading.py.
enum Element : int32_t { BF16_ELEMENT, FP16_ELEMENT, FP32_ELEMENT, INT8_ELEMENT, ELEMENTS };

template <class To, class From> inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Each format has `Bits`, whose `EXPONENT` bits are all set only in a NaN or an infinity, and conversions from and to float.
// Rounding is to nearest even; a NaN stays a NaN.
struct Bf16Element {
  using Bits = uint16_t;
  static constexpr Bits EXPONENT = 0x7f80;
  static float value(Bits bits) { return bits_as<float>((uint32_t)bits << 16); }
  static Bits rounded(float x) {
    const uint32_t bits = bits_as<uint32_t>(x), magnitude = bits & 0x7fffffff;
    const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (Bits)(magnitude > 0x7f800000 ? bits >> 16 | 0x40 : nearest);
  }
};

struct Fp16Element {
  using Bits = uint16_t;
  static constexpr Bits EXPONENT = 0x7c00;
  static float value(Bits bits) {
    constexpr uint32_t HIGHEST = 0x0f800000, BIAS = (127 - 15) << 23, LEAST_NORMAL = 113 << 23;
    const uint32_t shifted = (uint32_t)(bits & 0x7fff) << 13, exponent = shifted & HIGHEST;
    const uint32_t normal = shifted + BIAS, special = normal + ((128 - 16) << 23);
    const float subnormal = bits_as<float>(normal + (1 << 23)) - bits_as<float>(LEAST_NORMAL);
    const uint32_t finite = exponent ? normal : bits_as<uint32_t>(subnormal);
    return bits_as<float>((exponent == HIGHEST ? special : finite) | (uint32_t)(bits & 0x8000) << 16);
  }
  static Bits rounded(float x) {
    constexpr uint32_t INFINITE = 0x7f800000, BEYOND = (127 + 16) << 23, LEAST_NORMAL = 113 << 23;
    const uint32_t sign = bits_as<uint32_t>(x) >> 16 & 0x8000, magnitude = bits_as<uint32_t>(x) & 0x7fffffff;
    const uint32_t special = magnitude > INFINITE ? 0x7e00 : 0x7c00;
    // Adding a half moves a subnormal's bits to the end of the sum, rounded.
    const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
    const uint32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const uint32_t finite = magnitude < LEAST_NORMAL ? subnormal : normal;
    return (Bits)((magnitude >= BEYOND ? special : finite) | sign);
  }
};

struct Fp32Element {
  using Bits = uint32_t;
  static constexpr Bits EXPONENT = 0x7f800000;
  static float value(Bits bits) { return bits_as<float>(bits); }
  static Bits rounded(float x) { return bits_as<Bits>(x); }
};

template <class Format> inline float element_at(const void* row, int64_t i) {
  typename Format::Bits bits;
  std::memcpy(&bits, (const char*)row + i * sizeof bits, sizeof bits);
  return Format::value(bits);
}

inline int bytes_of(int32_t element) { return element == FP32_ELEMENT ? 4 : element == INT8_ELEMENT ? 1 : 2; }

// Elements [first, first + count) of a row in float.
template <class Format> inline void read_as(float* out, const void* row, int64_t first, int count) {
  for (int i = 0; i < count; i++) out[i] = element_at<Format>(row, first + i);
}

inline void read_floats(float* out, const void* row, int32_t element, int64_t first, int count) {
  switch (element) {
    case BF16_ELEMENT: return read_as<Bf16Element>(out, row, first, count);
    case FP16_ELEMENT: return read_as<Fp16Element>(out, row, first, count);
    default: return read_as<Fp32Element>(out, row, first, count);
  }
}

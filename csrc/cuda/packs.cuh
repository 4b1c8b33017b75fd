// Packs of eight consecutive elements, as floats: 16 bytes of 16-bit elements, 8 of fp8, 32 of float. Memory is aligned to
// a pack; for float to 16 bytes.
#pragma once
#include "device.cuh"

template <class T>
DEVICE void load8(float (&values)[8], const void* from, int64_t pack) {
  const uint4 bits = static_cast<const uint4*>(from)[pack];
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 8; i++) values[i] = to_float(T{uint16_t(words[i / 2] >> i % 2 * 16)});
}
template <>
DEVICE void load8<float>(float (&values)[8], const void* from, int64_t pack) {
  const float4* floats = static_cast<const float4*>(from) + 2 * pack;
  const float4 first = floats[0], second = floats[1];
  values[0] = first.x, values[1] = first.y, values[2] = first.z, values[3] = first.w;
  values[4] = second.x, values[5] = second.y, values[6] = second.z, values[7] = second.w;
}

// Rounded to nearest even.
template <class T>
DEVICE void store8(void* to, int64_t pack, const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = pack2<T>(values[2 * i], values[2 * i + 1]);
  static_cast<uint4*>(to)[pack] = make_uint4(words[0], words[1], words[2], words[3]);
}
template <>
DEVICE void store8<fp8>(void* to, int64_t pack, const float (&values)[8]) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t low = narrow2(values[4 * i], values[4 * i + 1]), high = narrow2(values[4 * i + 2], values[4 * i + 3]);
    words[i] = low | high << 16;
  }
  static_cast<uint2*>(to)[pack] = make_uint2(words[0], words[1]);
}

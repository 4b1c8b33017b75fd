// The primitives of device.cuh in C++: asynchronous copies, small floats, matrices of a warp, shuffles.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // C's <math.h>, without the overloads of <cmath>
#include <math.h>

#include "fibers.h"

namespace emulator __attribute__((visibility("hidden"))) {

// ---- asynchronous copies ------------------------------------------------------------------------------------------

void copy_async(void* to, const void* from, bool valid, const Place& here);
void copy_commit();
void copy_wait(size_t pending);

// ---- bits ---------------------------------------------------------------------------------------------------------

template <class T>
T from_bits(uint16_t bits) {
  T value;
  memcpy(&value, &bits, 2);
  return value;
}
template <class T>
uint16_t to_bits(T value) {
  uint16_t bits;
  memcpy(&bits, &value, 2);
  return bits;
}
inline uint32_t bf16_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline float e4m3_value(int bits) {
  int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  return (bits & 0x7f) == 0x7f ? NAN : bits & 0x80 ? -size : size;
}

// ---- matrices of a warp ---------------------------------------------------------------------------------------------

void load_matrices(uint32_t (&fragment)[4], const void* row, bool transposed, const Place& here);

template <class ToFloat>
void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, ToFloat to_float,
                  const Place& here) {
  struct Lane {
    float* sum;
    const uint32_t* a;
    uint32_t b[2];
  } mine{sum, a, {b0, b1}};
  auto work = [to_float](void** brought) {
    float left[16][16], right[16][8];
    state.stats.products++;
    auto each = [&](auto visit) {
      for (int i = 0; i < 32; i++) visit(*static_cast<Lane*>(brought[i]), i / 4, i % 4 * 2);
    };
    each([&](Lane& lane, int row, int column) {
      for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++)
          left[row + i % 2 * 8][column + i / 2 * 8 + half] = to_float(uint16_t(lane.a[i] >> 16 * half));
      for (int i = 0; i < 2; i++)
        for (int half = 0; half < 2; half++) right[column + i * 8 + half][row] = to_float(uint16_t(lane.b[i] >> 16 * half));
    });
    each([&](Lane& lane, int row, int column) {
      for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) lane.sum[i] += left[row + i / 2 * 8][k] * right[k][column + i % 2];
    });
  };
  meet(~0u, Meeting::MULTIPLY_ADD, here, &mine, work);
}

// ---- shuffles -------------------------------------------------------------------------------------------------------

template <class T>
T shuffle(unsigned mask, T value, int from, const Place& here) {
  struct Lane {
    T value, found;
    int from;
  } mine{value, value, from & 31};
  if (!(mask >> mine.from & 1)) fail(here, "a shuffle reads lane %d, which is not in its mask %08x", mine.from, mask);
  meet(mask, Meeting::SHUFFLE, here, &mine, [mask](void** brought) {
    for (int i = 0; i < 32; i++)
      if (mask >> i & 1) {
        Lane& lane = *static_cast<Lane*>(brought[i]);
        lane.found = static_cast<Lane*>(brought[lane.from])->value;
      }
  });
  return mine.found;
}

}  // namespace emulator

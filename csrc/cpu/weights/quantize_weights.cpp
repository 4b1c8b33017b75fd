// quantize_weights: a checkpoint's float weights to codes of 8 or 4 bits, by the rules in workers/quantization/on_load.py.
//
// Algorithm  every step is one IEEE operation on one element, or a sum over a group by repeated halving (element i +
//            element i + half), so codes and scales are the same for every instruction set and number of threads. The
//            compiler vectorizes the loops.
// Shapes     rows [outputs, inputs] of any stride;  codes [outputs, columns];  scales [outputs] or [outputs, groups]
// Tile       a row; threads divide the rows
// Floor      int8: source bytes / read bandwidth; int4: about 35 operations per weight
#include <algorithm>
#include <cmath>

#include "api.h"
#include "weights/stored_elements.h"
#include "pool.h"

namespace {

constexpr int CHUNK = 512;  // elements that are processed together: they stay in the first-level cache
constexpr int SUMS = 16;
constexpr float ROUNDING = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
constexpr float STEPS[] = {7.2f, 8.0f, 8.8f};

// The squared errors of a row's codes, and the squared weights, summed over 16 lanes: element i in lane i % 16.
struct Error {
  float lost[SUMS] = {}, there[SUMS] = {};

  template <int COUNT> void add(const float* exact, const float* value) {
    for (int from = 0; from < COUNT; from += SUMS)
      for (int i = 0; i < SUMS; i++) {
        const float missed = value[from + i] - exact[from + i];
        lost[i] += missed * missed;
        there[i] += exact[from + i] * exact[from + i];
      }
  }
  void write(double* out) const {
    out[0] = out[1] = 0.0;
    for (int i = 0; i < SUMS; i++) out[0] += lost[i], out[1] += there[i];
  }
};

float peak_of(const QuantizeWeightsParams& p, const char* row) {
  uint32_t top[SUMS] = {};  // of the bits of magnitudes: a NaN is above all
  alignas(64) float x[CHUNK];
  for (int from = 0; from < p.inputs; from += CHUNK) {
    const int count = std::min(CHUNK, p.inputs - from);
    if (count < CHUNK) std::fill_n(x, CHUNK, 0.0f);
    read_floats(x, row, p.element, from, count);
    for (int at = 0; at < CHUNK; at += SUMS)
      for (int i = 0; i < SUMS; i++) {
        const uint32_t magnitude = bits_as<uint32_t>(x[at + i]) & 0x7fffffff;
        top[i] = magnitude > top[i] ? magnitude : top[i];
      }
  }
  return bits_as<float>(*std::max_element(top, top + SUMS));
}

void quantize_int8_row(const QuantizeWeightsParams& p, int64_t output) {
  const char* row = (const char*)p.rows + output * p.stride * bytes_of(p.element);
  const float scale = peak_of(p, row) / 127.0f, step = scale > 0.0f ? scale : 1.0f;
  int8_t* const codes = (int8_t*)p.codes + output * p.columns;
  p.scales[output] = scale;
  Error error;
  alignas(64) float x[CHUNK], whole[CHUNK], value[CHUNK];
  for (int from = 0; from < p.columns; from += CHUNK) {
    const int count = std::min(CHUNK, p.columns - from);
    if (count < CHUNK) std::fill_n(x, CHUNK, 0.0f);
    read_floats(x, row, p.element, p.first_column + from, count);
    for (int i = 0; i < CHUNK; i++) {
      whole[i] = x[i] / step + ROUNDING - ROUNDING;
      value[i] = whole[i] * scale;
    }
    for (int i = 0; i < count; i++) codes[from + i] = (int8_t)(bits_as<int32_t>(whole[i] + ROUNDING) & 0xff);
    error.add<CHUNK>(x, value);
  }
  error.write(p.errors + output * 2);
}

// Eight elements of a group; the compiler maps it to the vectors of the instruction set.
using Eight = float __attribute__((vector_size(32)));
using Mask = int32_t __attribute__((vector_size(32)));

template <int SIZE> struct Group {
  static constexpr int PARTS = SIZE / 8;
  Eight part[PARTS];

  explicit Group(const float* x) { std::memcpy(part, x, sizeof part); }
};

Eight rounded_code(Eight x) {
  const Eight low = Eight{} - 8.0f, high = Eight{} + 7.0f;
  x = x < low ? low : x;
  return (x > high ? high : x) + ROUNDING - ROUNDING;
}

float sum_of(Eight x) {
  const float a = x[0] + x[4], b = x[1] + x[5], c = x[2] + x[6], d = x[3] + x[7];
  return (a + c) + (b + d);
}

template <int PARTS> float halved(Eight (&x)[PARTS]) {
  for (int half = PARTS / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return sum_of(x[0]);
}

template <int SIZE> float largest_of(const Group<SIZE>& x) {
  Eight low = x.part[0], high = x.part[0];
  for (int i = 1; i < x.PARTS; i++) {
    low = x.part[i] < low ? x.part[i] : low;
    high = x.part[i] > high ? x.part[i] : high;
  }
  float least = low[0], most = high[0];
  for (int i = 1; i < 8; i++) least = low[i] < least ? low[i] : least, most = high[i] > most ? high[i] : most;
  return -least > most ? least : most;
}

template <int SIZE> float best_step(const Group<SIZE>& x) {
  const float largest = largest_of(x), inverse = largest != 0.0f ? -1.0f / largest : 0.0f;
  float best = 0.0f, best_gain = 0.0f;
  for (const float steps : STEPS) {
    Eight overlaps[x.PARTS], norms[x.PARTS];
    const float by = steps * inverse;
    for (int i = 0; i < x.PARTS; i++) {
      const Eight code = rounded_code(x.part[i] * by);
      overlaps[i] = x.part[i] * code, norms[i] = code * code;
    }
    const float overlap = halved(overlaps), norm = halved(norms);
    const float step = Bf16Element::value(Bf16Element::rounded(overlap / std::max(norm, 1.0f)));
    const float gain = step * (2.0f * overlap - step * norm);
    if (gain > best_gain) best = step, best_gain = gain;
  }
  return best;
}

template <int SIZE> void quantize_int4_row(const QuantizeWeightsParams& p, int64_t output) {
  const char* row = (const char*)p.rows + output * p.stride * bytes_of(p.element);
  uint8_t* const codes = (uint8_t*)p.codes + output * p.columns;
  float* const scales = p.scales + output * (p.columns / SIZE);
  Error error;
  alignas(64) float x[SIZE], value[SIZE];
  alignas(64) int32_t code[SIZE];
  for (int from = 0; from < p.columns; from += SIZE) {
    read_floats(x, row, p.element, p.first_column + from, SIZE);
    const Group<SIZE> group(x);
    const float scale = best_step(group), step = scale != 0.0f ? scale : 1.0f;
    for (int i = 0; i < group.PARTS; i++) {
      const Eight whole = rounded_code(group.part[i] / step), stands_for = whole * scale;
      const Mask bits = (Mask)(whole + 8.0f + ROUNDING) & 15;
      std::memcpy(value + i * 8, &stands_for, sizeof stands_for);
      std::memcpy(code + i * 8, &bits, sizeof bits);
    }
    for (int i = 0; i < SIZE; i++) codes[from + i] = (uint8_t)code[i];
    scales[from / SIZE] = scale;
    error.add<SIZE>(x, value);
  }
  error.write(p.errors + output * 2);
}

template <class One> void each_row(Pool* pool, const QuantizeWeightsParams& p, One&& one) {
  pool->run(p.outputs, std::max(1, p.outputs / (16 * pool->size())), [&](int begin, int end) {
    for (int row = begin; row < end; row++) one(row);
  });
}

}  // namespace

void quantize_weights(Pool* pool, const QuantizeWeightsParams* p) {
  each_row(pool, *p, [&](int row) {
    switch (p->group_size) {
      case 32: return quantize_int4_row<32>(*p, row);
      case 64: return quantize_int4_row<64>(*p, row);
      case 128: return quantize_int4_row<128>(*p, row);
      default: return quantize_int8_row(*p, row);
    }
  });
}

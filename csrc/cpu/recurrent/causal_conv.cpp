// causal_conv: a depthwise convolution over each row's last positions, with its history in the paged cache.
//
// Algorithm  products are added in float from the bias on, the oldest input first; the result is rounded once. Inputs are
//            kept in a ring of `width` vectors, as floats, so a chunk reads each input once
// Shapes     recurrent/parameters.h
// Tile       CHANNELS channels of one row by one thread
// Floor      inputs, results and states pass through level 2 once: 20 us for 32 rows of 8448 channels
// Achieved   one core of Zen 4, 2304 channels: 145 us for 32 rows, 1.6 us a token in a prompt; silu is most of it
#include "api.h"
#include "elementwise/sigmoid.h"
#include "recurrent/state_rows.h"

namespace {

constexpr int CHANNELS = 256;  // whole vectors on all instruction sets; the ring and the weights stay in level 1
constexpr int MAX_WIDTH = 8;

template <class Element> inline F32 rounded(F32 x) {  // to the element's precision
  if constexpr (std::is_same_v<Element, Bfloat16>) return (F32)(bf16_bits(x) << 16);
  else if constexpr (std::is_same_v<Element, Float16>) return from_fp16(to_fp16(x));
  else return x;
}

template <class Element> struct Strip {  // the channels [first, first + size) of one row
  const CausalConvParams& p;
  const int64_t first;
  const int size;
  alignas(64) float ring[MAX_WIDTH][CHANNELS];  // the last inputs; `newest` is one of them
  int newest = 0;

  Strip(const CausalConvParams& params, int part)
      : p(params), first((int64_t)part * CHANNELS), size((int)std::min<int64_t>(CHANNELS, p.channels - first)) {}

  // The input that came `ago` tokens before the newest.
  float* input(int ago) { return ring[(newest + p.width - ago) % p.width]; }

  int64_t place(int ago) const { return (int64_t)(p.width - 2 - ago) * p.channels + first; }  // in the state

  void load(const Element* state) {
    for (int ago = 0; ago < p.width - 1; ago++)
      if (state) each_vector(size, [&](int at, int n) { put(input(ago) + at, get(state + place(ago) + at, n), n); });
      else std::fill_n(input(ago), size, 0.0f);
  }
  void save(Element* state) {
    for (int ago = 0; ago < p.width - 1; ago++)
      each_vector(size, [&](int at, int n) { put(state + place(ago) + at, get(input(ago) + at, n), n); });
  }
  void convolve(int token) {
    const int64_t from = token * p.x_stride + first;
    const Element *x = (const Element*)p.x + from, *x_factors = (const Element*)p.x_factors;
    const Element* y_factors = (const Element*)p.y_factors;
    Element* y = (Element*)p.y + token * p.y_stride + first;
    newest = newest + 1 < p.width ? newest + 1 : 0;
    const float* inputs[MAX_WIDTH];
    for (int j = 0; j < p.width; j++) inputs[j] = input(p.width - 1 - j);
    float* own = input(0);
    each_vector(size, [&](int at, int n) {
      F32 u = get(x + at, n);
      if (x_factors) u = rounded<Element>(u * get(x_factors + from + at, n));
      put(own + at, u, n);
      F32 sum = p.bias ? get(p.bias + first + at, n) : splat(0.0f);
      const float* weight = p.weight + first + at;
      for (int j = 0; j < p.width - 1; j++, weight += p.channels) sum = fma(get(weight, n), get(inputs[j] + at, n), sum);
      sum = fma(get(weight, n), u, sum);
      if (p.activates) sum = silu(sum);
      if (y_factors) sum = sum * get(y_factors + from + at, n);
      put(y + at, sum, n);
    });
  }
};

template <class Element> void convolve(Pool* pool, const CausalConvParams& p) {
  const int parts = (p.channels + CHANNELS - 1) / CHANNELS;
  for_state_parts(pool, p.rows, parts, std::min(CHANNELS, p.channels), [&](int row, int part) {
    Strip<Element> strip(p, part);
    each_block(p.rows, row, [&](const char* from, char* to, int token, int count) {
      strip.load((const Element*)from);
      for (int i = 0; i < count; i++) strip.convolve(token + i);
      if (to) strip.save((Element*)to);
    });
  });
}

}  // namespace

void causal_conv(Pool* pool, const CausalConvParams* p) {
  with_element(p->dtype, [&](auto x) { convolve<decltype(x)>(pool, *p); });
}

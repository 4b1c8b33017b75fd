// mamba1_scan: the selective scan of Mamba 1 (arXiv 2312.00752), position by position.
//
// Algorithm  state[n] = fma(exp(dt * a[n]), state[n], (dt * x) * b[n]) in this order of roundings, whether the token is decoded
//            or in a chunk. Outputs are added over n in eights: even and odd n separately, the sum of the earlier eights first
//            among the even; then d * x, and one rounding
// Shapes     recurrent/scans.h
// Tile       STRIP channels of one row by one thread. Eight n of a vector of channels stay in registers over the tokens of a
//            segment, with their a; their b and c lie side by side
// Floor      decode: the state is read and written once. Chunks: an exponential per state element and token, 17 vector
//            operations with the rest; no head shares it, as in Mamba 2
// Achieved   one core of Zen 4, 2048 channels of 16: 32 rows 0.50 of the bandwidth of reading; 512 tokens one vector operation a
//            cycle, where FMA and multiplications alone could be one a cycle, too
#include "recurrent/scans/columns.h"
#include "recurrent/scans/softplus.h"

namespace {

constexpr int STRIP = 4 * LANES_OF_COLUMN;  // b and c are converted once for all its channels

struct Segment {
  int count, width, depth;  // tokens; padded channels; state_size
  const float *dt, *input;  // [count, width], dt * x
  const float *b, *c;       // [depth / 8, count, 8]
  float* y;                 // [count, width]
};

// `a`, `from` and `to` are of one vector of channels; rows are LANES_OF_COLUMN elements apart.
void scan_eight(const Segment& s, const float* a, const float* from, float* to, int vector, int eight) {
  F32 state[EIGHT], rate[EIGHT];
  EACH(i, EIGHT) {
    rate[i] = load(a + i * LANES_OF_COLUMN);
    state[i] = from ? load(from + i * LANES_OF_COLUMN) : splat(0.0f);
  }
  const float *b = s.b + (int64_t)eight * s.count * EIGHT, *c = s.c + (int64_t)eight * s.count * EIGHT;
  for (int t = 0; t < s.count; t++, b += EIGHT, c += EIGHT) {
    const int at = t * s.width + vector * LANES;
    const F32 dt = load(s.dt + at), input = load(s.input + at);
    F32 even = eight ? load(s.y + at) : splat(0.0f), odd = splat(0.0f);
    EACH(i, EIGHT) {
      state[i] = fma(exp2(dt * rate[i]), state[i], input * splat(b[i]));
      F32& sum = i % 2 ? odd : even;
      sum = fma(state[i], splat(c[i]), sum);
    }
    store(s.y + at, even + odd);
  }
  EACH(i, EIGHT) store(to + i * LANES_OF_COLUMN, state[i]);
}

template <class Element> struct Strip {  // the channels [first, first + size) of one row
  const Mamba1ScanParams& p;
  const int first, size, width;
  float *dt, *input, *y, *b, *c;

  Strip(const Mamba1ScanParams& params, int part)
      : p(params), first(part * STRIP), size(std::min(STRIP, p.channels - first)), width(in_columns(size)) {
    thread_local Arena arena;
    dt = (float*)arena.reserve(sizeof(float) * SEGMENT * (3 * width + 2 * p.state_size));
    input = dt + SEGMENT * width, y = input + SEGMENT * width;
    b = y + SEGMENT * width, c = b + SEGMENT * p.state_size;
  }

  const Element* x(int token) const { return (const Element*)p.x + token * p.x_stride + first; }
  const Element* steps(int token) const { return (const Element*)p.dt + token * p.dt_stride + first; }

  void inputs(int token, float* dt, float* input) {  // of padding, input is 0
    each_vector(width, [&](int at, int) {
      const int n = std::max(0, size - at);
      const F32 step = softplus(get(steps(token) + at, n) + get(p.dt_bias + first + at, n));
      store(dt + at, step), store(input + at, step * get(x(token) + at, n));
    });
  }

  void advance(const float* from, float* to, int token, int count) {
    for (int t = 0; t < count; t++) {
      in_eights((const Element*)p.b + (token + t) * p.b_stride, p.state_size, b, t, count);
      in_eights((const Element*)p.c + (token + t) * p.b_stride, p.state_size, c, t, count);
      inputs(token + t, dt + t * width, input + t * width);
    }
    if (count == SEGMENT) {  // probably another follows
      prefetch_segment(x(token + count), p.x_stride, size);
      prefetch_segment(steps(token + count), p.dt_stride, size);
    }
    const Segment segment{count, width, p.state_size, dt, input, b, c, y};
    const float* a = p.a + (int64_t)first * p.state_size;
    for (int vector = 0; vector * LANES < width; vector++)
      for (int eight = 0; eight < p.state_size / EIGHT; eight++) {
        const int64_t place = vector_place(vector, p.state_size) + eight * EIGHT * LANES_OF_COLUMN;
        scan_eight(segment, a + place, from ? from + place : nullptr, to + place, vector, eight);
      }
    for (int t = 0; t < count; t++) {
      Element* out = (Element*)p.y + (token + t) * p.y_stride + first;
      each_vector(size, [&](int at, int n) {
        put(out + at, fma(get(x(token + t) + at, n), get(p.d + first + at, n), load(y + t * width + at)), n);
      });
    }
  }
};

}  // namespace

void mamba1_scan(Pool* pool, const Mamba1ScanParams* p) {
  const int parts = (p->channels + STRIP - 1) / STRIP, elements = STRIP * p->state_size;
  with_element(p->dtype, [&](auto x) {
    for_state_parts(pool, p->rows, parts, elements, [&](int row, int part) {
      Strip<decltype(x)> strip(*p, part);
      const int64_t size = (int64_t)strip.width * p->state_size;
      each_segment(p->rows, row, (int64_t)part * elements, size, [&](const float* from, float* to, int token, int count) {
        strip.advance(from, to, token, count);
      });
    });
  });
}

// mamba2_scan: the state space recurrence of Mamba 2 (arXiv 2405.21060), position by position.
//
// Algorithm  state[n] = fma(exp(dt * a), state[n], (dt * x) * b[n]) in this order of roundings, whether the token is decoded or
//            in a chunk. Outputs are added over n in eights: even and odd n separately, the sum of the earlier eights first
//            among the even; then d * x, and one rounding
// Shapes     recurrent/scans.h
// Tile       a head of one row by one thread. Eight n of VECTORS vectors of outputs stay in registers over the tokens of a
//            segment; their b and c lie side by side
// Floor      decode: the state is read and written once, 2 MB a row and layer of 64 heads of 64 x 128. Chunks: three vector
//            operations per state element and token
// Achieved   one core of Zen 4, 32 heads of 64 x 128: 32 rows 0.86 of the bandwidth of reading; 512 tokens 0.82 of the peak of FMA
#include "recurrent/scans/columns.h"
#include "recurrent/scans/softplus.h"

namespace {

constexpr int VECTORS = REGISTERS >= 32 ? 2 : 1;  // 8 * VECTORS states in registers

struct Segment {
  int count, width, depth;  // tokens; padded head_dim; state_size
  const float *decay, *input;  // [count]; [count, width], dt * x
  const float *b, *c;          // [depth / 8, count, 8]
  float* y;                    // [count, width]
};

template <int COUNT> void scan_eight(const Segment& s, const float* from, float* to, int vector, int eight) {
  int64_t place[COUNT];
  F32 state[EIGHT][COUNT];
  EACH(v, COUNT) {
    place[v] = vector_place(vector + v, s.depth) + (int64_t)eight * EIGHT * LANES_OF_COLUMN;
    EACH(i, EIGHT) state[i][v] = from ? load(from + place[v] + i * LANES_OF_COLUMN) : splat(0.0f);
  }
  const float *b = s.b + (int64_t)eight * s.count * EIGHT, *c = s.c + (int64_t)eight * s.count * EIGHT;
  for (int t = 0; t < s.count; t++, b += EIGHT, c += EIGHT) {
    const F32 decay = splat(s.decay[t]);
    float* y = s.y + (int64_t)t * s.width + vector * LANES;
    F32 input[COUNT], even[COUNT], odd[COUNT];
    EACH(v, COUNT) {
      input[v] = load(s.input + (int64_t)t * s.width + (vector + v) * LANES);
      even[v] = eight ? load(y + v * LANES) : splat(0.0f), odd[v] = splat(0.0f);
    }
    EACH(i, EIGHT) EACH(v, COUNT) {
      state[i][v] = fma(decay, state[i][v], input[v] * splat(b[i]));
      F32& sum = i % 2 ? odd[v] : even[v];
      sum = fma(state[i][v], splat(c[i]), sum);
    }
    EACH(v, COUNT) store(y + v * LANES, even[v] + odd[v]);
  }
  EACH(v, COUNT) EACH(i, EIGHT) store(to + place[v] + i * LANES_OF_COLUMN, state[i][v]);
}

void scan(const Segment& s, const float* from, float* to) {
  const int vectors = s.width / LANES;
  int vector = 0;
  for (; vector + VECTORS <= vectors; vector += VECTORS)
    for (int eight = 0; eight < s.depth / EIGHT; eight++) scan_eight<VECTORS>(s, from, to, vector, eight);
  for (; vector < vectors; vector++)
    for (int eight = 0; eight < s.depth / EIGHT; eight++) scan_eight<1>(s, from, to, vector, eight);
}

template <class Element> struct Head {
  const Mamba2ScanParams& p;
  const int head, width;
  float *dt, *decay, *input, *y, *b, *c;

  Head(const Mamba2ScanParams& params, int number) : p(params), head(number), width(in_columns(p.head_dim)) {
    thread_local Arena arena;
    dt = (float*)arena.reserve(sizeof(float) * SEGMENT * (2 + 2 * width + 2 * p.state_size));
    decay = dt + SEGMENT, input = decay + SEGMENT, y = input + SEGMENT * width;
    b = y + SEGMENT * width, c = b + SEGMENT * p.state_size;
  }

  const Element* x(int token) const { return (const Element*)p.x + token * p.x_stride + (int64_t)head * p.head_dim; }

  void steps(int token, int count) {  // sets dt and decay
    gather_tokens((const Element*)p.dt + token * p.dt_stride + head, p.dt_stride, count, dt);
    for (int t = 0; t < count; t += LANES) {
      const F32 step = softplus(load(dt + t) + p.dt_bias[head]);
      const F32 limited = min(splat(p.greatest_dt), max(splat(p.least_dt), step));
      store(dt + t, limited), store(decay + t, exp(limited * p.a[head]));
    }
  }

  void advance(const float* from, float* to, int token, int count) {
    const int64_t group = head / (p.heads / p.groups) * (int64_t)p.state_size;
    steps(token, count);
    for (int t = 0; t < count; t++) {
      const int64_t at = (token + t) * p.x_stride + group;
      in_eights((const Element*)p.b + at, p.state_size, b, t, count);
      in_eights((const Element*)p.c + at, p.state_size, c, t, count);
      widen(x(token + t), input + t * width, p.head_dim);
      for (int i = 0; i < width; i += LANES) store(input + t * width + i, load(input + t * width + i) * dt[t]);
    }
    if (count == SEGMENT) prefetch_segment(x(token + count), p.x_stride, p.head_dim);  // probably another follows
    scan({count, width, p.state_size, decay, input, b, c, y}, from, to);
    for (int t = 0; t < count; t++) {
      Element* out = (Element*)p.y + (token + t) * p.y_stride + (int64_t)head * p.head_dim;
      each_vector(p.head_dim, [&](int at, int n) {
        put(out + at, fma(get(x(token + t) + at, n), splat(p.d[head]), load(y + t * width + at)), n);
      });
    }
  }
};

}  // namespace

void mamba2_scan(Pool* pool, const Mamba2ScanParams* p) {
  const int64_t size = (int64_t)in_columns(p->head_dim) * p->state_size;
  with_element(p->dtype, [&](auto x) { scan_heads<Head<decltype(x)>>(pool, *p, size); });
}

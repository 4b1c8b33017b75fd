// gated_delta: the gated delta rule (arXiv 2412.06464), position by position.
//
// Algorithm  of each value's element, over the rows k of its state: the sum of key[k] * state[k], times g, is what the state
//            holds for this key; state[k] = fma(key[k], beta * (value - that), g * state[k]); y = sum query[k] * state[k]. Sums over k are
//            four, of every fourth k, added as (0 + 1) + (2 + 3). The order is the same for a decoded token and a chunk
//            With decays of their own, rows are multiplied by them before the first sum, too
// Shapes     recurrent/scans.h
// Tile       a head of one row by one thread; of VECTORS vectors of values the state stays in level 1 over the tokens of a
//            segment, as the second sum needs all of the first
// Floor      decode: the state is read and written once, 4 MB a row and layer of 32 heads of 128 x 128. Chunks: four vector
//            operations per state element and token
// Achieved   one core of Zen 4, 16 heads of 128 x 128: 32 rows 0.81 of the bandwidth of reading; 512 tokens 0.65 of the peak of FMA
#include "recurrent/scans/columns.h"
#include "recurrent/scans/softplus.h"

namespace {

constexpr int CHAINS = 4;
constexpr int VECTORS = 2;

struct Segment {
  int count, width, depth;       // tokens; padded value_dim; key_dim
  const float* decay;            // [count], or [count, depth]
  const float* beta;             // [count]
  const float *query, *key;      // [count, depth]
  const float* value;            // [count, width]
  float* y;                      // [count, width]
};

template <int COUNT> struct Vectors {
  F32 part[COUNT];
};

// The sum of the four chains.
template <int COUNT> inline Vectors<COUNT> total(const F32 (&chains)[CHAINS][COUNT]) {
  Vectors<COUNT> sum;
  EACH(v, COUNT) sum.part[v] = (chains[0][v] + chains[1][v]) + (chains[2][v] + chains[3][v]);
  return sum;
}

template <int COUNT> void clear(F32 (&chains)[CHAINS][COUNT]) { EACH(j, CHAINS) EACH(v, COUNT) chains[j][v] = splat(0.0f); }

// Advances the state of COUNT vectors, at from[v] and to[v], by token t. PER_ROW: rows have decays of their own.
template <bool PER_ROW, int COUNT>
void advance(const Segment& s, const float* const (&from)[COUNT], float* const (&to)[COUNT], int vector, int t) {
  const float *key = s.key + (int64_t)t * s.depth, *query = s.query + (int64_t)t * s.depth;
  const int64_t place = (int64_t)t * s.width + vector * LANES;
  const float* decays = s.decay + (int64_t)t * (PER_ROW ? s.depth : 1);
  const F32 whole = splat(decays[0]);
  const auto decay = [&](int k) { return PER_ROW ? splat(decays[k]) : whole; };
  F32 chains[CHAINS][COUNT];
  clear(chains);
  for (int k = 0; k < s.depth; k += CHAINS)
    EACH(j, CHAINS) EACH(v, COUNT)
      chains[j][v] = fma(load(from[v] + (k + j) * LANES_OF_COLUMN),
                         splat(PER_ROW ? key[k + j] * decays[k + j] : key[k + j]), chains[j][v]);
  const Vectors<COUNT> sum = total(chains);
  F32 change[COUNT];
  EACH(v, COUNT) {
    const F32 held = PER_ROW ? sum.part[v] : decay(0) * sum.part[v];
    change[v] = (load(s.value + place + v * LANES) - held) * s.beta[t];
  }
  clear(chains);
  for (int k = 0; k < s.depth; k += CHAINS)
    EACH(j, CHAINS) EACH(v, COUNT) {
      const F32 state = fma(change[v], splat(key[k + j]), decay(k + j) * load(from[v] + (k + j) * LANES_OF_COLUMN));
      store(to[v] + (k + j) * LANES_OF_COLUMN, state);
      chains[j][v] = fma(state, splat(query[k + j]), chains[j][v]);
    }
  const Vectors<COUNT> out = total(chains);
  EACH(v, COUNT) store(s.y + place + v * LANES, out.part[v]);
}

template <bool PER_ROW, int COUNT> void scan_vectors(const Segment& s, const float* from, float* to, int vector) {
  const float* sources[COUNT];
  float* targets[COUNT];
  EACH(v, COUNT) {
    targets[v] = to + vector_place(vector + v, s.depth);
    sources[v] = from ? from + vector_place(vector + v, s.depth) : targets[v];
    if (!from)
      for (int k = 0; k < s.depth; k++) store(targets[v] + k * LANES_OF_COLUMN, splat(0.0f));
  }
  advance<PER_ROW, COUNT>(s, sources, targets, vector, 0);
  EACH(v, COUNT) sources[v] = targets[v];
  for (int t = 1; t < s.count; t++) advance<PER_ROW, COUNT>(s, sources, targets, vector, t);
}

template <bool PER_ROW> void scan(const Segment& s, const float* from, float* to) {
  const int vectors = s.width / LANES;
  int vector = 0;
  for (; vector + VECTORS <= vectors; vector += VECTORS) scan_vectors<PER_ROW, VECTORS>(s, from, to, vector);
  for (; vector < vectors; vector++) scan_vectors<PER_ROW, 1>(s, from, to, vector);
}

// `from` [size] to unit length, times `scale`.
template <class Element> void normalise(const Element* from, int size, float eps, float scale, float* to) {
  const float squares = sum_of_squares(size, [&](int at, int n) { return get(from + at, n); });
  const float factor = 1.0f / std::sqrt(squares + eps);
  each_vector(size, [&](int at, int n) { put(to + at, get(from + at, n) * factor * scale, n); });
}

// Not inlined: the constants of both functions are more than there are registers.
[[gnu::noinline]] F32 decay_of(F32 x, float a) { return exp(softplus(x) * a); }

[[gnu::noinline]] F32 bounded_decay_of(F32 x, float a, float bound) { return exp(sigmoid(x * -a) * bound); }

template <class Element> struct Head {
  const GatedDeltaParams& p;
  const int head, width;
  float *decay, *beta, *value, *y, *query, *key;

  Head(const GatedDeltaParams& params, int number) : p(params), head(number), width(in_columns(p.value_dim)) {
    thread_local Arena arena;
    decay = (float*)arena.reserve(sizeof(float) * SEGMENT * (1 + p.decays + 2 * width + 2 * p.key_dim));
    beta = decay + SEGMENT * p.decays, value = beta + SEGMENT, y = value + SEGMENT * width;
    query = y + SEGMENT * width, key = query + SEGMENT * p.key_dim;
  }

  void gates(int token, int count) {  // sets decay and beta
    gather_tokens((const Element*)p.b + token * p.b_stride + head, p.b_stride, count, beta);
    for (int t = 0; t < count; t += LANES) store(beta + t, sigmoid(load(beta + t)) * p.max_beta);
    if (p.decays > 1) return decays_of_rows(token, count);
    gather_tokens((const Element*)p.alpha + token * p.alpha_stride + head, p.alpha_stride, count, decay);
    for (int t = 0; t < count; t += LANES)
      store(decay + t, decays_of(load(decay + t) + p.dt_bias[head]));
  }

  F32 decays_of(F32 x) const { return p.lower_bound ? bounded_decay_of(x, p.a[head], p.lower_bound) : decay_of(x, p.a[head]); }

  void decays_of_rows(int token, int count) {
    const float* bias = p.dt_bias + (int64_t)head * p.decays;
    for (int t = 0; t < count; t++) {
      const Element* alpha = (const Element*)p.alpha + (token + t) * p.alpha_stride + (int64_t)head * p.decays;
      each_vector(p.decays, [&](int at, int n) {
        put(decay + t * p.decays + at, decays_of(get(alpha + at, n) + get(bias + at, n)), n);
      });
    }
  }

  void advance(const float* from, float* to, int token, int count) {
    const int64_t key_head = head / (p.heads / p.key_heads) * (int64_t)p.key_dim;
    gates(token, count);
    for (int t = 0; t < count; t++) {
      const int64_t at = (token + t) * p.x_stride;
      normalise((const Element*)p.query + at + key_head, p.key_dim, p.eps, p.scale, query + t * p.key_dim);
      normalise((const Element*)p.key + at + key_head, p.key_dim, p.eps, 1.0f, key + t * p.key_dim);
      widen((const Element*)p.value + at + (int64_t)head * p.value_dim, value + t * width, p.value_dim);
    }
    const Segment segment{count, width, p.key_dim, decay, beta, query, key, value, y};
    p.decays > 1 ? scan<true>(segment, from, to) : scan<false>(segment, from, to);
    for (int t = 0; t < count; t++) {
      Element* out = (Element*)p.y + (token + t) * p.y_stride + (int64_t)head * p.value_dim;
      each_vector(p.value_dim, [&](int at, int n) { put(out + at, load(y + t * width + at), n); });
    }
  }
};

}  // namespace

void gated_delta(Pool* pool, const GatedDeltaParams* p) {
  const int64_t size = (int64_t)in_columns(p->value_dim) * p->key_dim;
  with_element(p->dtype, [&](auto x) { scan_heads<Head<decltype(x)>>(pool, *p, size); });
}

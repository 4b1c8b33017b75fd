// From a router's logits to each token's experts and their weights; csrc/cpu/experts/route.cpp describes the choice and has
// the same bits. One warp per row; an expert is chosen TOP_K times by a maximum over the warp.
// Bytes: 4 * SEGMENTS * COLUMNS per row; a few microseconds, which a launch costs.
//
// -D EXPERTS, TOP_K: of a token. SCORE: a name below. GROUPS, TOP_GROUPS: as in csrc/cpu/experts. RENORMALISES, HAS_GATE: 0 or 1.
// THREADS, SHARED_BYTES.
#include "experts/warp_row.cuh"

struct RouteExpertsParams {
  int32_t* experts;         // [rows, TOP_K], ascending
  float* weights;           // [rows, TOP_K]
  float* gates;             // [rows] sigmoids of the column after the experts', with HAS_GATE
  const float* logits;      // [segments, rows, EXPERTS + HAS_GATE], to be added in this order
  const float* bias;        // [EXPERTS], or null
  const float* correction;  // [EXPERTS], or null
  const float* factors;     // [EXPERTS], of weights at the end; or null
  int32_t rows, segments;
  float scale, jitter;
};

enum { SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID, SPARSE_MIXER, SIGMOID_OF_CHOSEN };
constexpr int WARPS = THREADS / 32, COLUMNS = EXPERTS + HAS_GATE;
constexpr float LEAST_SUM = 1e-20f;
static_assert(SHARED_BYTES == WARPS * EXPERTS * 4 && SLOTS<EXPERTS> <= 32 && TOP_K <= EXPERTS && EXPERTS % GROUPS == 0);

using Row = WarpRow<EXPERTS>;

DEVICE float logit(const RouteExpertsParams& p, int64_t row, int column) {
  float sum = 0.f;
  for (int s = 0; s < p.segments; s++) sum += p.logits[(int64_t(s) * p.rows + row) * COLUMNS + column];
  return p.bias && column < EXPERTS ? sum + p.bias[column] : sum;
}

// Removes the experts outside the best groups. `scratch` is [EXPERTS] floats of this warp.
DEVICE void leave_top_groups(Row& choice, float* scratch) {
  constexpr int SIZE = EXPERTS / GROUPS;
  each_element<EXPERTS>([&](int s, int e) { scratch[e] = choice[s]; });
  __syncwarp();
  WarpRow<GROUPS> best;
  each_element<GROUPS>([&](int s, int group) {
    float first = lowest(), second = lowest();
    for (int i = group * SIZE; i < (group + 1) * SIZE; i++) {
      const float x = scratch[i];
      if (x > first) second = first, first = x;
      else if (x > second) second = x;
    }
    best[s] = SIZE > 1 && SCORE != SOFTMAX ? first + second : first;
  });
  const uint32_t kept = highest<GROUPS, TOP_GROUPS>(best);
#pragma unroll
  for (int s = 0; s < SLOTS<EXPERTS>; s++) {
    const int group = (s * 32 + threadIdx.x % 32) / SIZE;
    if (!(__shfl_sync(ALL_LANES, kept, group % 32) >> (group / 32 & 31) & 1)) choice[s] = lowest();
  }
  __syncwarp();
}

// The chosen experts; `weights` become the scores by which they are weighed.
DEVICE uint32_t choose(const RouteExpertsParams& p, Row& weights, float* scratch) {
  Row choice;
  each_element<EXPERTS>([&](int s, int) { choice[s] = weights[s]; });
  if (SCORE == SIGMOID) each_element<EXPERTS>([&](int s, int) { weights[s] = sigmoid(weights[s]); });
  if (SCORE == SOFTMAX) softmax<EXPERTS>(weights);
  if (p.correction || GROUPS > 1) each_element<EXPERTS>([&](int s, int) { choice[s] = weights[s]; });
  if (p.correction) each_element<EXPERTS>([&](int s, int e) { choice[s] += p.correction[e]; });
  if constexpr (GROUPS > 1) leave_top_groups(choice, scratch);
  return highest<EXPERTS, TOP_K>(choice);
}

// The same for the sparse mixer.
DEVICE uint32_t mix(const RouteExpertsParams& p, Row& weights) {
  uint32_t chosen = 0;
  Row logits, left;
  each_element<EXPERTS>([&](int s, int) { logits[s] = left[s] = weights[s]; });
#pragma unroll 1
  for (int i = 0; i < TOP_K; i++) {
    const uint32_t with = with_highest<EXPERTS>(left, chosen);
    const float top = row_max<EXPERTS>(left);
    Row powers;
    each_element<EXPERTS>([&](int s, int) {
      const bool is_far = (top - logits[s]) / fmaxf(fabsf(logits[s]), top) > 2.f * p.jitter;
      powers[s] = is_far ? lowest() : left[s];
    });
    softmax<EXPERTS>(powers);
    each_element<EXPERTS>([&](int s, int) {
      if ((with ^ chosen) >> s & 1) weights[s] = powers[s], left[s] = lowest();
    });
    chosen = with;
  }
  return chosen;
}

KERNEL(route_experts, RouteExpertsParams) {
  DYNAMIC_SHARED(shared);
  const int64_t row = int64_t(blockIdx.x) * WARPS + threadIdx.x / 32, first = row * TOP_K;
  if (row >= p.rows) return;
  float* const scratch = reinterpret_cast<float*>(shared) + threadIdx.x / 32 * EXPERTS;
  Row weights = {};
  each_element<EXPERTS>([&](int s, int e) { weights[s] = logit(p, row, e); });
  if (HAS_GATE && threadIdx.x % 32 == 0) p.gates[row] = sigmoid(logit(p, row, EXPERTS));
  const uint32_t chosen = SCORE == SPARSE_MIXER ? mix(p, weights) : choose(p, weights, scratch);
  each_chosen<EXPERTS>(chosen, [&](int s, int e, int at) { p.experts[first + at] = e, scratch[at] = weights[s]; });
  __syncwarp();
  WarpRow<TOP_K> found = {};
  each_element<TOP_K>([&](int s, int at) { found[s] = scratch[at]; });
  if (SCORE == SOFTMAX_OF_CHOSEN) softmax<TOP_K>(found);
  if (SCORE == SIGMOID_OF_CHOSEN) each_element<TOP_K>([&](int s, int) { found[s] = sigmoid(found[s]); });
  float divisor = 1.f;
  if (RENORMALISES) {
    __syncwarp();
    each_element<TOP_K>([&](int s, int at) { scratch[at] = found[s]; });
    __syncwarp();
    float total = 0.f;
    for (int i = 0; i < TOP_K; i++) total += scratch[i];
    divisor = total + LEAST_SUM;
  }
  each_element<TOP_K>([&](int s, int at) {
    const float factor = p.factors ? p.factors[p.experts[first + at]] : 1.f;
    p.weights[first + at] = found[s] / divisor * factor * p.scale;
  });
}

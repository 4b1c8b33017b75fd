// route_experts: from a router's logits to each token's experts, their weights, and the places of its rows.
//
// Algorithm  scores in float: softmax or sigmoid of the logits, or the logits themselves, of which the chosen ones are then
//            weighed by either. With a correction or groups the highest scores are chosen (DeepSeek-V3, arXiv 2412.19437,
//            2.1.2; with softmax a group counts as its best expert, DeepSeek-V2, arXiv 2405.04434, 2.2.2), otherwise the
//            highest logits, which have the order of their scores; among equals the lower index. The sparse mixer
//            (arXiv 2409.12136, as in inference) chooses the highest logit m of those that are left, `top_k` times; its
//            weight is its softmax among the logits s left whose (m - s) / max(|s|, m) is at most 2 * jitter. Places by a
//            counting sort over experts, tokens in their order.
// Shapes     experts/parameters.h
// Tile       one row by one thread; the counting sort by the caller
// Floor      negligible beside the products: 128 experts, 8 chosen: 1 us a row
#include "api.h"
#include "arena.h"
#include "elementwise/rows.h"
#include "elementwise/sigmoid.h"

namespace {

enum { SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID, SPARSE_MIXER, SIGMOID_OF_CHOSEN };  // RouteParams::score
constexpr float LEAST_SUM = 1e-20f;  // of weights, so that none of them is divided by zero
constexpr float LOWEST = -__builtin_inff();

// chosen[0..count) = the indices of the highest of `size` values, ascending. Always `count` of them, even of NaN.
void choose(const float* values, int size, int count, int32_t* chosen) {
  int found = 0;  // in descending order of values
  for (int i = 0; i < size; i++) {
    if (found == count && !(values[i] > values[chosen[found - 1]])) continue;
    int at = found < count ? found++ : count - 1;
    for (; at > 0 && values[i] > values[chosen[at - 1]]; at--) chosen[at] = chosen[at - 1];
    chosen[at] = i;
  }
  std::sort(chosen, chosen + count);
}

void softmax(float* out, const float* x, int size) {
  const float top = *std::max_element(x, x + size);
  each_vector(size, [&](int at, int n) { put(out + at, exp(get(x + at, n) - splat(top)), n); });
  const float total = sum_over(size, [&](F32& to, int at, int n) { to += get(out + at, n); });
  each_vector(size, [&](int at, int n) { put(out + at, get(out + at, n) / splat(total), n); });
}

// Removes the experts outside the best groups from the choice.
void leave_top_groups(const RouteParams& p, float* choice, float* best, int32_t* chosen) {
  const int size = p.num_experts / p.groups;
  for (int g = 0; g < p.groups; g++) {
    float first = LOWEST, second = LOWEST;
    for (int i = g * size; i < (g + 1) * size; i++)
      if (choice[i] > first) second = first, first = choice[i];
      else if (choice[i] > second) second = choice[i];
    best[g] = size > 1 && p.score != SOFTMAX ? first + second : first;
  }
  choose(best, p.groups, p.top_groups, chosen);
  for (int g = 0, next = 0; g < p.groups; g++) {
    if (next < p.top_groups && chosen[next] == g) next++;
    else std::fill_n(choice + g * size, size, LOWEST);
  }
}

void mix_row(const RouteParams& p, const float* logits, float* left, float* powers, int32_t* experts, float* weights) {
  std::copy_n(logits, p.num_experts, left);
  for (int j = 0; j < p.top_k; j++) {
    const int best = (int)(std::max_element(left, left + p.num_experts) - left);
    const float top = left[best];
    for (int e = 0; e < p.num_experts; e++) {
      const bool is_far = (top - logits[e]) / std::max(std::fabs(logits[e]), top) > 2 * p.jitter;
      powers[e] = is_far ? LOWEST : left[e];
    }
    softmax(powers, powers, p.num_experts);
    int at = j;  // ascending
    for (; at > 0 && best < experts[at - 1]; at--) experts[at] = experts[at - 1], weights[at] = weights[at - 1];
    experts[at] = best, weights[at] = powers[best];
    left[best] = LOWEST;
  }
}

void choose_row(const RouteParams& p, const float* logits, float* scores, float* choice, int32_t* experts, float* weights) {
  const int size = p.num_experts;
  if (p.score == SIGMOID) each_vector(size, [&](int at, int n) { put(scores + at, sigmoid(get(logits + at, n)), n); });
  if (p.score == SOFTMAX) softmax(scores, logits, size);
  const bool by_scores = p.score == SOFTMAX || p.score == SIGMOID;
  std::copy_n(by_scores && (p.correction || p.groups > 1) ? scores : logits, size, choice);
  if (p.correction) each_vector(size, [&](int at, int n) { put(choice + at, get(choice + at, n) + get(p.correction + at, n), n); });
  if (p.groups > 1) leave_top_groups(p, choice, weights, experts);
  choose(choice, size, p.top_k, experts);
  for (int j = 0; j < p.top_k; j++) weights[j] = (by_scores ? scores : logits)[experts[j]];
  if (p.score == SOFTMAX_OF_CHOSEN) softmax(weights, weights, p.top_k);
  if (p.score == SIGMOID_OF_CHOSEN) each_vector(p.top_k, [&](int at, int n) { put(weights + at, sigmoid(get(weights + at, n)), n); });
}

void route_row(const RouteParams& p, int row) {
  thread_local Arena arena;
  float* scores = (float*)arena.reserve((3 * sizeof(float) + sizeof(int32_t)) * p.num_experts);
  float *choice = scores + p.num_experts, *found = choice + p.num_experts;
  int32_t* chosen = (int32_t*)(found + p.num_experts);  // as many as experts, for groups may be more than top_k
  const float* logits = p.logits + row * p.stride;
  if (p.score == SPARSE_MIXER) mix_row(p, logits, scores, choice, chosen, found);
  else choose_row(p, logits, scores, choice, chosen, found);
  float divisor = 1.0f;
  if (p.renormalises) {
    float total = 0.0f;
    for (int j = 0; j < p.top_k; j++) total += found[j];
    divisor = total + LEAST_SUM;
  }
  for (int j = 0; j < p.top_k; j++) {
    p.experts[(int64_t)row * p.top_k + j] = chosen[j];
    p.weights[(int64_t)row * p.top_k + j] = found[j] / divisor * (p.factors ? p.factors[chosen[j]] : 1.0f) * p.scale;
  }
}

void place_rows(const RouteParams& p) {
  const int64_t count = (int64_t)p.rows * p.top_k;
  std::fill_n(p.starts, p.held_experts + 1, 0);
  const auto held = [&](int64_t i) { return (uint32_t)(p.experts[i] - p.first_expert); };
  for (int64_t i = 0; i < count; i++)
    if (held(i) < (uint32_t)p.held_experts) p.starts[held(i) + 1]++;
  for (int e = 0; e < p.held_experts; e++) p.starts[e + 1] += p.starts[e];
  for (int64_t i = 0; i < count; i++) p.places[i] = held(i) < (uint32_t)p.held_experts ? p.starts[held(i)]++ : -1;
  for (int e = p.held_experts; e > 0; e--) p.starts[e] = p.starts[e - 1];  // each had moved on to the next one's
  p.starts[0] = 0;
}

}  // namespace

void route_experts(Pool* pool, const RouteParams* p) {
  for_rows(pool, p->rows, p->num_experts * p->top_k, [&](int row) { route_row(*p, row); });
  place_rows(*p);
}

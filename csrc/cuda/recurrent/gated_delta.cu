// The gated delta rule (arXiv 2412.06464), position by position: for each element of a value, held = sum over k of key[k] *
// state[k]; state[k] = fma(beta * (value - decay * held), key[k], decay * state[k]); y = sum over k of query[k] * state[k],
// rounded once, where decay = exp(a * softplus(alpha + dt_bias)) and beta = max_beta * sigmoid(b). Queries and keys are divided by
// sqrt(sum of squares + eps), queries also by sqrt(DEPTH). Sums and the layout of a block are those of scan.cuh.
// Bytes: the state once in each direction, 4 MB per row of 32 heads of 128 x 128; floor at 4.3 TB/s: 31 us for 32 decoded
// rows. A chunk is bound by the latency of its tokens, one after another.
//
// -D SCALAR: bf16 or fp16. DEPTH: numbers of a query and of a key, a multiple of 4. THREADS, SHARED_BYTES.
#include "recurrent/scan.cuh"

struct GatedDeltaParams {
  StateRowsParams rows;
  void* y;                       // [tokens, heads, value_dim], tokens y_stride apart
  const void* x;                 // [tokens, 2 * key_heads * DEPTH + heads * value_dim], tokens x_stride apart: queries, keys, values
  const void *b, *alpha;         // [tokens, heads], tokens gate_stride apart
  const float *a, *dt_bias;      // [heads]
  int64_t y_stride, x_stride, gate_stride;
  int32_t heads, key_heads, value_dim;
  float scale, eps, max_beta;    // of queries; of the norms; of beta
};
static_assert(SHARED_BYTES == bytes_of_inputs(1, 2));

// One vector of DEPTH elements by a warp: to unit length, times `scale`. The squares add in each lane, then over lanes.
DEVICE void normalise(float* to, const SCALAR* from, float eps, float scale) {
  constexpr int SLOTS = PADDED / 32 + (PADDED % 32 != 0);
  float values[SLOTS], squares = 0.f;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    const int n = i * 32 + threadIdx.x % 32;
    values[i] = n < DEPTH ? to_float(from[n]) : 0.f;
    squares = fmaf(values[i], values[i], squares);
  }
  const float factor = 1.f / sqrtf(warp_sum(squares) + eps);
#pragma unroll
  for (int i = 0; i < SLOTS; i++)
    if (const int n = i * 32 + threadIdx.x % 32; n < PADDED) to[n] = values[i] * factor * scale;
}

DEVICE void stage(const GatedDeltaParams& p, const HeadInputs& inputs, const Output& output, int token, int count) {
  const SCALAR* x = static_cast<const SCALAR*>(p.x) + token * p.x_stride;
  const SCALAR* query = x + output.head / (p.heads / p.key_heads) * DEPTH;
  const int64_t of_keys = int64_t(p.key_heads) * DEPTH;
  for (int i = threadIdx.x / 32; i < count; i += WARPS) {
    normalise(inputs.first + i * PADDED, query + i * p.x_stride, p.eps, p.scale);
    normalise(inputs.second + i * PADDED, query + i * p.x_stride + of_keys, p.eps, 1.f);
  }
  stage_own(inputs.own, x + 2 * of_keys + int64_t(output.head) * p.value_dim, p.x_stride, count, output);
  if (threadIdx.x < count) {
    const int64_t at = (token + threadIdx.x) * p.gate_stride + output.head;
    const float alpha = to_float(static_cast<const SCALAR*>(p.alpha)[at]) + p.dt_bias[output.head];
    inputs.decay[threadIdx.x] = exponential(softplus(alpha) * p.a[output.head]);
    inputs.factor[threadIdx.x] = sigmoid(to_float(static_cast<const SCALAR*>(p.b)[at])) * p.max_beta;
  }
}

KERNEL(gated_delta, GatedDeltaParams) {
  DYNAMIC_SHARED(shared);
  const HeadInputs inputs(shared);
  const Output output(p.value_dim);
  scan(
      p.rows, output, [&](int token, int count) { stage(p, inputs, output, token, count); },
      [&](State& state, int token, int slot) {
        const float decay = inputs.decay[slot], value = inputs.own[slot * BLOCK_OUTPUTS + output.slot];
        const float *query = inputs.first + slot * PADDED, *key = inputs.second + slot * PADDED;
        float chains[4] = {0.f, 0.f, 0.f, 0.f};
        output.each_quartet(key, [&](int i, const float(&k)[4]) {
#pragma unroll
          for (int j = 0; j < 4; j++) chains[j] = fmaf(state[i][j], k[j], chains[j]);
        });
        if constexpr (DEPTH > 256) __syncwarp();  // so that keys are read again, as states take the registers
        const float change = (value - decay * sum_of(chains)) * inputs.factor[slot];
        output.each_quartet(key, [&](int i, const float(&k)[4]) {
#pragma unroll
          for (int j = 0; j < 4; j++) state[i][j] = fmaf(change, k[j], decay * state[i][j]);
        });
#pragma unroll
        for (int j = 0; j < 4; j++) chains[j] = 0.f;
        output.each_quartet(query, [&](int i, const float(&q)[4]) {
#pragma unroll
          for (int j = 0; j < 4; j++) chains[j] = fmaf(state[i][j], q[j], chains[j]);
        });
        const float y = sum_of(chains);
        SCALAR* out = static_cast<SCALAR*>(p.y) + token * p.y_stride + int64_t(output.head) * p.value_dim;
        if (output.writes()) out[output.number] = from_float<SCALAR>(y);
      });
}

// The recurrence of Mamba 2 (arXiv 2405.21060), position by position: for each element of a head, state[n] =
// fma(exp(dt * a), state[n], (dt * x) * b[n]); y = sum over n of state[n] * c[n], then fma(x, d, y), rounded once, where
// dt = softplus(dt + dt_bias), limited. Sums and the layout of a block are those of scan.cuh.
// Bytes: the state once in each direction, 4 MB per row of 64 heads of 64 x 128; floor at 4.3 TB/s: 31 us for 32 decoded
// rows. A chunk is bound by the latency of its tokens, one after another.
//
// -D SCALAR: bf16 or fp16. DEPTH: numbers of an element's state, a multiple of 4. THREADS, SHARED_BYTES.
#include "recurrent/scan.cuh"

struct Mamba2ScanParams {
  StateRowsParams rows;
  void* y;         // [tokens, heads, head_dim], tokens y_stride apart
  const void* x;   // [tokens, heads * head_dim + 2 * groups * DEPTH], tokens x_stride apart: x, then b, then c
  const void* dt;  // [tokens, heads], tokens dt_stride apart
  const float *a, *d, *dt_bias;  // [heads]
  int64_t y_stride, x_stride, dt_stride;
  int32_t heads, head_dim, groups;
  float least_dt, greatest_dt;
};
static_assert(SHARED_BYTES == bytes_of_inputs(1, 2));

DEVICE void stage(const Mamba2ScanParams& p, const HeadInputs& inputs, const Output& output, int token, int count) {
  const SCALAR* x = static_cast<const SCALAR*>(p.x) + token * p.x_stride;
  const SCALAR* b = x + int64_t(p.heads) * p.head_dim + output.head / (p.heads / p.groups) * DEPTH;
  const SCALAR* c = b + int64_t(p.groups) * DEPTH;
  for (int i = threadIdx.x; i < count * PADDED; i += THREADS) {
    const int n = i % PADDED;
    const int64_t at = i / PADDED * p.x_stride + n;
    inputs.first[i] = n < DEPTH ? to_float(b[at]) : 0.f;
    inputs.second[i] = n < DEPTH ? to_float(c[at]) : 0.f;
  }
  stage_own(inputs.own, x + int64_t(output.head) * p.head_dim, p.x_stride, count, output);
  if (threadIdx.x < count) {
    const float raw = to_float(static_cast<const SCALAR*>(p.dt)[(token + threadIdx.x) * p.dt_stride + output.head]);
    const float dt = softplus(raw + p.dt_bias[output.head]);
    const float limited = dt < p.least_dt ? p.least_dt : dt > p.greatest_dt ? p.greatest_dt : dt;
    inputs.factor[threadIdx.x] = limited, inputs.decay[threadIdx.x] = exponential(limited * p.a[output.head]);
  }
}

KERNEL(mamba2_scan, Mamba2ScanParams) {
  DYNAMIC_SHARED(shared);
  const HeadInputs inputs(shared);
  const Output output(p.head_dim);
  const float d = p.d[output.head];
  scan(
      p.rows, output, [&](int token, int count) { stage(p, inputs, output, token, count); },
      [&](State& state, int token, int slot) {
        const float x = inputs.own[slot * BLOCK_OUTPUTS + output.slot], input = x * inputs.factor[slot];
        const float decay = inputs.decay[slot];
        float chains[4] = {0.f, 0.f, 0.f, 0.f};
        output.each_quartet(inputs.first + slot * PADDED, [&](int i, const float(&b)[4]) {
#pragma unroll
          for (int j = 0; j < 4; j++) state[i][j] = fmaf(decay, state[i][j], input * b[j]);
        });
        output.each_quartet(inputs.second + slot * PADDED, [&](int i, const float(&c)[4]) {
#pragma unroll
          for (int j = 0; j < 4; j++) chains[j] = fmaf(state[i][j], c[j], chains[j]);
        });
        const float y = fmaf(x, d, sum_of(chains));
        SCALAR* out = static_cast<SCALAR*>(p.y) + token * p.y_stride + int64_t(output.head) * p.head_dim;
        if (output.writes()) out[output.number] = from_float<SCALAR>(y);
      });
}

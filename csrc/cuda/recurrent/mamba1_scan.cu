// The selective scan of Mamba 1 (arXiv 2312.00752), position by position: for each channel, state[n] = fma(exp(dt * a[n]),
// state[n], (dt * x) * b[n]); y = sum over n of state[n] * c[n], then fma(x, d, y), rounded once, where dt = softplus(dt +
// dt_bias). Sums and the layout of a block are those of scan.cuh, with all channels as one head.
// Bytes: the state once in each direction, 1 MB per row of 8,192 channels of 16; floor at 4.3 TB/s: 8 us for 32 decoded rows.
// A chunk is bound by the exponentials, one for each number of the state and token.
//
// -D SCALAR: bf16 or fp16. DEPTH: numbers of a channel's state, a multiple of 8. THREADS, SHARED_BYTES.
#include "recurrent/scan.cuh"

struct Mamba1ScanParams {
  StateRowsParams rows;
  void* y;                    // [tokens, channels], tokens y_stride apart
  const void *x, *dt;         // likewise, x_stride and dt_stride
  const void* b_and_c;        // [tokens, 2 * DEPTH], tokens b_stride apart
  const float* a;             // in the places of the state, times log2(e), zero-padded
  const float *d, *dt_bias;   // [channels]
  int64_t y_stride, x_stride, dt_stride, b_stride;
  int32_t channels;
};
static_assert(SHARED_BYTES == bytes_of_inputs(2, 0));

constexpr bool HOLDS_RATES = DEPTH <= 128;  // in registers; of more numbers, a group's are read for each token

// The rates of state[i], from registers or from memory.
struct Rates {
  const Output& output;
  const float* a;
  float held[HOLDS_RATES ? GROUPS : 1][4];

  DEVICE Rates(const Output& of, const float* rates) : output(of), a(rates) {
    if (!HOLDS_RATES || !output.has_state()) return;
#pragma unroll
    for (int i = 0; HOLDS_RATES && i < GROUPS; i++) output.load(held[i], a, i);
  }
  DEVICE const float (&of_group(int i))[4] {
    if constexpr (HOLDS_RATES) return held[i];
    __syncwarp();  // so that a group is read after the one before it, as states take the registers
    output.load(held[0], a, i);
    return held[0];
  }
};

// Decays: exp2 of what is never positive, at least 2^-126, as on the CPU; a NaN stays a NaN.
DEVICE float decay_of(float dt, float rate) {
  const float exponent = dt * rate;
  return power_of_two(exponent < -126.f ? -126.f : exponent);
}

DEVICE void stage(const Mamba1ScanParams& p, const Inputs& inputs, const Output& output, int token, int count) {
  const SCALAR* b = static_cast<const SCALAR*>(p.b_and_c) + token * p.b_stride;
  for (int i = threadIdx.x; i < count * PADDED; i += THREADS) {
    const int n = i % PADDED;
    const int64_t at = i / PADDED * p.b_stride + n;
    inputs.first[i] = n < DEPTH ? to_float(b[at]) : 0.f;
    inputs.second[i] = n < DEPTH ? to_float(b[at + DEPTH]) : 0.f;
  }
  stage_own(inputs.own, static_cast<const SCALAR*>(p.x) + token * p.x_stride, p.x_stride, count, output);
  float* steps = inputs.others;
  stage_own(steps, static_cast<const SCALAR*>(p.dt) + token * p.dt_stride, p.dt_stride, count, output);
  for (int i = threadIdx.x; i < count * BLOCK_OUTPUTS; i += THREADS) {  // the same thread has staged it
    const int number = output.first() + i % BLOCK_OUTPUTS;
    if (number < output.outputs) steps[i] = softplus(steps[i] + p.dt_bias[number]);
  }
}

KERNEL(mamba1_scan, Mamba1ScanParams) {
  DYNAMIC_SHARED(shared);
  const Inputs inputs(shared);
  const Output output(p.channels);
  const float d = output.writes() ? p.d[output.number] : 0.f;
  Rates rates(output, p.a);
  scan(
      p.rows, output, [&](int token, int count) { stage(p, inputs, output, token, count); },
      [&](State& state, int token, int slot) {
        const int own = slot * BLOCK_OUTPUTS + output.slot;
        const float x = inputs.own[own], dt = inputs.others[own], input = x * dt;
        float chains[4] = {0.f, 0.f, 0.f, 0.f};
        output.each_quartet(inputs.first + slot * PADDED, [&](int i, const float(&b)[4]) {
          const float(&rate)[4] = rates.of_group(i);
#pragma unroll
          for (int j = 0; j < 4; j++) state[i][j] = fmaf(decay_of(dt, rate[j]), state[i][j], input * b[j]);
        });
        output.each_quartet(inputs.second + slot * PADDED, [&](int i, const float(&c)[4]) {
#pragma unroll
          for (int j = 0; j < 4; j++) chains[j] = fmaf(state[i][j], c[j], chains[j]);
        });
        const float y = fmaf(x, d, sum_of(chains));
        SCALAR* out = static_cast<SCALAR*>(p.y) + token * p.y_stride;
        if (output.writes()) out[output.number] = from_float<SCALAR>(y);
      });
}

// Scans: recurrences whose state has DEPTH numbers for each output of a head, in memory [columns of 16 outputs, DEPTH, 16]
// float, zero-padded. A thread block advances BLOCK_OUTPUTS outputs of one head of one row, token by token; the numbers stay in
// registers over the row's tokens of the step, and are read and written once for each block of the cache that these pass.
//
// A warp has 8 outputs: of number n of output o, lane n / 4 % 4 * 8 + o % 8 has state[n / 16][n % 4]. A sum over n consists of
// four chains of every fourth number in a lane, added as (0 + 1) + (2 + 3), then of the lanes 8 and 16 apart. The order depends
// only on DEPTH, so a decoded token has the bits of one in a chunk.
#pragma once
#include "recurrent/gates.cuh"
#include "recurrent/state_rows.cuh"

constexpr int COLUMN = 16, WARP_OUTPUTS = 8, WARPS = THREADS / 32, BLOCK_OUTPUTS = WARPS * WARP_OUTPUTS;
constexpr int GROUPS = (DEPTH + 15) / 16, PADDED = 16 * GROUPS;
constexpr int TOKENS = DEPTH > 256 ? 8 : 16;  // whose inputs are in shared memory at once, as floats
static_assert(DEPTH % 4 == 0);

using State = float[GROUPS][4];

DEVICE int padded_outputs(int outputs) { return (outputs + COLUMN - 1) / COLUMN * COLUMN; }
// Thread blocks of a head.
DEVICE int slices_of(int outputs) { return (padded_outputs(outputs) + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS; }

// The inputs of up to TOKENS tokens in shared memory: two vectors of DEPTH floats, zero-padded, the outputs' own inputs, and
// others of each scan.
struct Inputs {
  float *first, *second, *own, *others;
  DEVICE explicit Inputs(unsigned char* shared) {
    first = reinterpret_cast<float*>(shared), second = first + TOKENS * PADDED;
    own = second + TOKENS * PADDED, others = own + TOKENS * BLOCK_OUTPUTS;
  }
};
// A scan with a decay and a factor of each token, which all outputs of a head share.
struct HeadInputs : Inputs {
  float *decay, *factor;
  DEVICE explicit HeadInputs(unsigned char* shared) : Inputs(shared), decay(others), factor(others + TOKENS) {}
};
constexpr int bytes_of_inputs(int of_output, int of_token) {
  return 4 * TOKENS * (2 * PADDED + of_output * BLOCK_OUTPUTS + of_token);
}

// The head, and the output of this thread.
struct Output {
  const int head, outputs, slot, part, number;  // slot: in the block
  DEVICE explicit Output(int of_head)
      : head(blockIdx.x / slices_of(of_head)),
        outputs(of_head),
        slot(threadIdx.x / 32 * WARP_OUTPUTS + threadIdx.x % WARP_OUTPUTS),
        part(threadIdx.x % 32 / WARP_OUTPUTS),
        number(first() + slot) {}

  DEVICE int first() const { return blockIdx.x % slices_of(outputs) * BLOCK_OUTPUTS; }  // of the block
  DEVICE bool has_state() const { return number < padded_outputs(outputs); }            // all lanes of a warp alike
  DEVICE bool writes() const { return part == 0 && number < outputs; }

  // Calls body(j, place) for each number state[i][j] of this thread; `place` is in the layer's state.
  template <class Body>
  DEVICE void each_number(int i, Body body) const {
    const int64_t column = int64_t(head) * padded_outputs(outputs) + number / COLUMN * COLUMN;
    const int64_t at = column * DEPTH + number % COLUMN;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (const int n = i * 16 + part * 4 + j; n < DEPTH) body(j, at + n * COLUMN);
  }
  // Sets state[i] to `numbers`, which lie as the layer's state; null: zeros.
  DEVICE void load(float (&four)[4], const float* numbers, int i) const {
#pragma unroll
    for (int j = 0; j < 4; j++) four[j] = 0.f;
    if (numbers) each_number(i, [&](int j, int64_t place) { four[j] = numbers[place]; });
  }
  DEVICE void load(State& state, const float* numbers) const {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) load(state[i], numbers, i);
  }
  DEVICE void store(const State& state, unsigned char* to) const {
    float* numbers = reinterpret_cast<float*>(to);
#pragma unroll
    for (int i = 0; i < GROUPS; i++) each_number(i, [&](int j, int64_t place) { numbers[place] = state[i][j]; });
  }

  // Calls body(i, quartet) with this thread's parts of a vector of PADDED floats in shared memory.
  template <class Body>
  DEVICE void each_quartet(const float* vector, Body body) const {
    const float4* quartets = reinterpret_cast<const float4*>(vector) + part;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      const float4 four = quartets[4 * i];
      const float numbers[4] = {four.x, four.y, four.z, four.w};
      body(i, numbers);
    }
  }
};

// The sum of all chains of an output, in each of its lanes.
DEVICE float sum_of(const float (&chains)[4]) {
  float sum = (chains[0] + chains[1]) + (chains[2] + chains[3]);
  sum += __shfl_xor_sync(ALL_LANES, sum, WARP_OUTPUTS);
  return sum + __shfl_xor_sync(ALL_LANES, sum, 2 * WARP_OUTPUTS);
}

// The block's own inputs of `count` tokens, zeros beyond the last output; `from` is the head's first of the first token.
DEVICE void stage_own(float* to, const SCALAR* from, int64_t stride, int count, const Output& output) {
  for (int i = threadIdx.x; i < count * BLOCK_OUTPUTS; i += THREADS) {
    const int number = output.first() + i % BLOCK_OUTPUTS;
    to[i] = number < output.outputs ? to_float(from[i / BLOCK_OUTPUTS * stride + number]) : 0.f;
  }
}

// Calls stage(token, count), by all threads, for the inputs of the next tokens, and step(state, token, slot) for each token
// with its slot among them.
template <class Stage, class Step>
DEVICE void scan(const StateRowsParams& rows, const Output& output, Stage stage, Step step) {
  const RowTokens row(rows, blockIdx.y);
  if (row.first == row.end) return;
  State state;
  if (output.has_state()) output.load(state, reinterpret_cast<const float*>(row.source()));
  for (int first = row.first; first < row.end; first += TOKENS) {
    const int count = min(TOKENS, row.end - first);
    __syncthreads();  // all threads are done with the inputs before
    stage(first, count);
    __syncthreads();
    if (!output.has_state()) continue;
#pragma unroll 1
    for (int i = 0; i < count; i++) {
      step(state, first + i, i);
      if (row.keeps_state(first + i)) output.store(state, row.state_at(row.position(first + i)));
    }
  }
}

// y[t] = silu(bias + sum over j of weight[j] * u[t - WIDTH + 1 + j]) * y_factors[t] for each channel, where u = x * x_factors,
// rounded. Products are added in float from the bias on, the oldest input first; the result is rounded once. A row's state is
// the last WIDTH - 1 of u, [WIDTH - 1, channels], the oldest first.
//
// A thread has one channel of a span of the step's tokens, whatever rows these are of. The block of a row's first token also
// computes its first WIDTH - 1 tokens, and it alone reads and writes the row's states: another block would write the state
// that it reads. Other blocks read earlier inputs from x, so spans may have any length.
// Bytes: 4 per token and channel, 6 or 8 with factors; floor at 4.3 TB/s: 64 us for 8,192 tokens of 8,448 channels.
//
// -D SCALAR: bf16 or fp16. WIDTH: 2 to 8. ACTIVATES: 0 or 1; without it, no silu. THREADS, SHARED_BYTES.
#include "recurrent/gates.cuh"
#include "recurrent/state_rows.cuh"

struct CausalConvParams {
  StateRowsParams rows;
  void* y;                // [tokens, channels], rows y_stride apart
  const void* x;          // [tokens, channels], rows x_stride apart
  const void* x_factors;  // the same, with x's stride; or null: ones
  const void* y_factors;  // likewise
  const float* weight;    // [WIDTH, channels]
  const float* bias;      // [channels], or null
  int64_t x_stride, y_stride;
  int32_t channels, tokens, span;  // span: tokens of a block
};

constexpr int LAST = WIDTH - 1;
static_assert(WIDTH >= 2 && WIDTH <= 8 && SHARED_BYTES == 0);

// The channel of one thread.
struct Channel {
  const CausalConvParams& p;
  const int channel;
  float weight[WIDTH], bias;

  DEVICE Channel(const CausalConvParams& params, int number) : p(params), channel(number) {
#pragma unroll
    for (int j = 0; j < WIDTH; j++) weight[j] = p.weight[int64_t(j) * p.channels + channel];
    bias = p.bias ? p.bias[channel] : 0.f;
  }

  DEVICE float input(int token) const {
    const int64_t at = token * p.x_stride + channel;
    const float x = to_float(static_cast<const SCALAR*>(p.x)[at]);
    if (!p.x_factors) return x;
    return to_float(from_float<SCALAR>(x * to_float(static_cast<const SCALAR*>(p.x_factors)[at])));
  }

  // `window`: the token's input and those before it, the oldest first.
  DEVICE void convolve(const float (&window)[WIDTH], int token) const {
    float sum = bias;
#pragma unroll
    for (int j = 0; j < WIDTH; j++) sum = fmaf(weight[j], window[j], sum);
    if (ACTIVATES) sum = silu(sum);
    if (p.y_factors) sum *= to_float(static_cast<const SCALAR*>(p.y_factors)[token * p.x_stride + channel]);
    static_cast<SCALAR*>(p.y)[token * p.y_stride + channel] = from_float<SCALAR>(sum);
  }

  // The last inputs before the row's first token, into window[1] and the following.
  DEVICE void load(float (&window)[WIDTH], const RowTokens& row) const {
    const SCALAR* state = reinterpret_cast<const SCALAR*>(row.source());
#pragma unroll
    for (int j = 0; j < LAST; j++) window[j + 1] = state ? to_float(state[int64_t(j) * p.channels + channel]) : 0.f;
  }

  DEVICE void keep(const float (&window)[WIDTH], const RowTokens& row, int token) const {
    SCALAR* state = reinterpret_cast<SCALAR*>(row.state_at(row.position(token)));
#pragma unroll
    for (int j = 0; j < LAST; j++) state[int64_t(j) * p.channels + channel] = from_float<SCALAR>(window[j + 1]);
  }

  // The states that are kept after token `token` or later ones, at least WIDTH - 1 tokens after the row's first.
  DEVICE void keep_later(const RowTokens& row, int token) const {
    while (token < row.stored_end) {
      const int in_block = row.position(token) % row.rows.block_size;
      const int last = min(row.stored_end, token + row.rows.block_size - in_block) - 1;
      float window[WIDTH];
#pragma unroll
      for (int j = 0; j < LAST; j++) window[j + 1] = input(last - LAST + 1 + j);
      keep(window, row, last);
      token = last + 1;
    }
  }
};

// The row's tokens that belong to the block of the tokens [from, to).
DEVICE void convolve_row(const Channel& channel, const RowTokens& row, int from, int to) {
  const bool has_first = row.first >= from;
  const int own = row.first + LAST;  // tokens before it belong to the block of the first
  int token = has_first ? row.first : max(from, own);
  const int stop = min(row.end, has_first ? max(to, own) : to);
  if (token >= stop) return;
  float window[WIDTH];
  if (has_first) channel.load(window, row);
#pragma unroll
  for (int j = 0; j < LAST; j++)
    if (!has_first) window[j + 1] = channel.input(token - LAST + j);
  for (; token < stop; token++) {
#pragma unroll
    for (int j = 0; j < LAST; j++) window[j] = window[j + 1];
    window[LAST] = channel.input(token);
    channel.convolve(window, token);
    if (has_first && row.keeps_state(token)) channel.keep(window, row, token);
  }
  if (has_first) channel.keep_later(row, stop);
}

// The last row that starts at or before the token.
DEVICE int row_of(const StateRowsParams& rows, int token) {
  int low = 0, high = rows.rows - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (rows.row_starts[middle] <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}

KERNEL(causal_conv, CausalConvParams) {
  const int number = blockIdx.x * THREADS + threadIdx.x;
  if (number >= p.channels) return;
  const Channel channel(p, number);
  const int from = blockIdx.y * p.span, to = min(from + p.span, p.tokens);
  for (int row = row_of(p.rows, from); row < p.rows.rows && p.rows.row_starts[row] < to; row++)
    convolve_row(channel, RowTokens(p.rows, row), from, to);
}

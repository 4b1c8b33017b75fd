// The shape of a block's tile of a product, and its weights: numbers of SCALAR, or 4-bit codes. Codes become the numbers that
// they stand for, in float and rounded once to SCALAR, when they have arrived: a product has the bits of one with these
// numbers. A row of shared memory has an odd number of 16-byte chunks, so that the eight rows of a matrix are in different
// banks.
#pragma once
#include "device.cuh"

enum { FLOATS, INT4, E2M1 };  // WEIGHT

struct ExpertProductParams {
  void* out;               // [rows, outputs] OUT of each group
  const void* x;           // SCALAR
  const void* weight;      // [outputs, inputs] of each group: SCALAR, or pairs of 4-bit codes, the first in the low half
  const float* scales;     // [groups of inputs, rows of `weight`], of codes
  const uint8_t* zeros;    // likewise, with HAS_ZEROS
  const float* bias;       // [groups, outputs], or null
  const int32_t* sources;  // row of x of each out row, or null: the same
  const int32_t* starts;   // [groups + 1], group g has the out rows [starts[g], starts[g + 1]); or null: each has `rows`
  int64_t x_stride, weight_stride;           // elements from row to row, multiples of 8; of codes 32
  int64_t x_group, weight_group, out_group;  // elements from group to group, the first two multiples of 8
  int64_t out_stride, scales_stride;         // elements from row to row; of scales a multiple of 16
  int32_t rows, inputs, outputs;             // inputs: of a group, a multiple of 8; of codes 32
  int32_t scaled;                            // inputs that share a scale: 64 / SCALES, or a multiple of 64
};

constexpr int TILE_ROWS = 16 * WARP_ROWS * ROW_PARTS, TILE_COLUMNS = 16 * WARP_COLUMNS * COLUMN_PAIRS;
constexpr int TILE_INPUTS = 64, CHUNKS = TILE_INPUTS / 8, STRIDE = (CHUNKS | 1) * 16;
constexpr int ROW_STEP = THREADS / CHUNKS;  // a thread copies one chunk of every ROW_STEP-th row
static_assert(THREADS == 32 * WARP_ROWS * WARP_COLUMNS && TILE_ROWS % ROW_STEP == 0 && TILE_COLUMNS % ROW_STEP == 0);


class FloatWeights {
 public:
  static constexpr int BYTES = TILE_COLUMNS * STRIDE, EXPANDED_BYTES = 0;

  DEVICE FloatWeights(const ExpertProductParams& p, int group, int first_column) {
    const int row = threadIdx.x / CHUNKS;
    const SCALAR* weight = static_cast<const SCALAR*>(p.weight) + group * p.weight_group + threadIdx.x % CHUNKS * 8;
    weight_ = weight + (first_column + row) * p.weight_stride;
    step_ = ROW_STEP * p.weight_stride;
    columns_left_ = p.outputs - first_column - row;
  }
  // Starts to copy the weights of the inputs from `input` on; those of columns and inputs beyond the last become zeros.
  DEVICE void ask(unsigned char* to, int input, int inputs) const {
    const int chunk = threadIdx.x % CHUNKS;
    to += threadIdx.x / CHUNKS * STRIDE + chunk * 16;
#pragma unroll
    for (int i = 0; i < TILE_COLUMNS / ROW_STEP; i++, to += ROW_STEP * STRIDE)
      copy_async16(to, weight_ + i * step_ + input, input + chunk * 8 < inputs && i * ROW_STEP < columns_left_);
  }
  // The weights of a stage whose copies have arrived, [TILE_COLUMNS] rows.
  DEVICE const unsigned char* arrived(const unsigned char* stage, unsigned char*) const { return stage; }

 private:
  const SCALAR* weight_;  // this thread's chunk of its first row
  int64_t step_;
  int columns_left_;  // from this thread's first column on
};

// A stage has the codes, [2][TILE_COLUMNS] chunks of 32 inputs, then scales and zero points, [SCALES][TILE_COLUMNS]. A thread
// copies and expands whole chunks; scales are copied for all columns, as they are allocated for whole tiles.
class CodedWeights {
 public:
  static constexpr int CODE_BYTES = TILE_COLUMNS * TILE_INPUTS / 2, SCALE_BYTES = SCALES * TILE_COLUMNS * 4;
  static constexpr int BYTES = CODE_BYTES + SCALE_BYTES + HAS_ZEROS * SCALES * TILE_COLUMNS;
  static constexpr int EXPANDED_BYTES = TILE_COLUMNS * STRIDE;

  DEVICE CodedWeights(const ExpertProductParams& p, int group, int first_column)
      : p_(p), columns_left_(p.outputs - first_column), place_(group * p.weight_group / p.weight_stride + first_column) {}

  DEVICE void ask(unsigned char* to, int input, int inputs) const {
    const uint8_t* codes = static_cast<const uint8_t*>(p_.weight) + (place_ * p_.weight_stride + input) / 2;
#pragma unroll
    for (int i = threadIdx.x; i < 2 * TILE_COLUMNS; i += THREADS) {
      const int column = i % TILE_COLUMNS, half = i / TILE_COLUMNS;
      copy_async16(to + i * 16, codes + column * p_.weight_stride / 2 + half * 16,
                   input + half * 32 < inputs && column < columns_left_);
    }
    const int64_t at = int64_t(SCALES > 1 ? input / (TILE_INPUTS / SCALES) : input / p_.scaled) * p_.scales_stride + place_;
    copy_lines<4>(to + CODE_BYTES, p_.scales + at, input, inputs);
    if (HAS_ZEROS) copy_lines<1>(to + CODE_BYTES + SCALE_BYTES, p_.zeros + at, input, inputs);
  }
  DEVICE const unsigned char* arrived(const unsigned char* stage, unsigned char* expanded) const {
#pragma unroll
    for (int i = threadIdx.x; i < 2 * TILE_COLUMNS; i += THREADS) expand(expanded, stage, i % TILE_COLUMNS, i / TILE_COLUMNS);
    __syncthreads();
    return expanded;
  }

 private:
  // The lines of scales, or of zero points, of a stage: numbers of SIZE bytes for each column.
  template <int SIZE, class T>
  DEVICE void copy_lines(unsigned char* to, const T* from, int input, int inputs) const {
    constexpr int LINE = TILE_COLUMNS * SIZE / 16;
#pragma unroll
    for (int i = threadIdx.x; i < SCALES * LINE; i += THREADS) {
      const int line = i / LINE;
      copy_async16(to + i * 16, from + line * p_.scales_stride + i % LINE * (16 / SIZE),
                   input + line * (TILE_INPUTS / SCALES) < inputs);
    }
  }
  // The number that a code stands for, in units of its scale; `zero`: 2^23 and the code of zero.
  DEVICE float number(uint32_t code, float zero) const {
    constexpr uint32_t TWO_TO_23 = 0x4b000000u;  // a float whose last bits are an integer
    if (WEIGHT == INT4) return __uint_as_float(TWO_TO_23 | code) - zero;
    const uint32_t exponent = code >> 1 & 3, last = code & 1, twice = exponent ? (2 + last) << (exponent - 1) : last;
    const float size = __uint_as_float(TWO_TO_23 | twice) - 8388608.f;
    return code & 8 ? -size : size;
  }
  DEVICE void expand(unsigned char* to, const unsigned char* stage, int column, int half) const {
    constexpr int RUNS = SCALES > 2 ? 2 : 1;  // of codes with one scale, of the 32 here
    const uint4 codes = reinterpret_cast<const uint4*>(stage)[half * TILE_COLUMNS + column];
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const int place = (SCALES == 1 ? 0 : half * RUNS + w * RUNS / 4) * TILE_COLUMNS + column;
      const float scale = reinterpret_cast<const float*>(stage + CODE_BYTES)[place];
      const float zero = 8388608.f + (HAS_ZEROS ? float(stage[CODE_BYTES + SCALE_BYTES + place]) : 8.f);
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        pairs[i] = pack2<SCALAR>(number(words[w] >> 8 * i & 15, zero) * scale, number(words[w] >> (8 * i + 4) & 15, zero) * scale);
      *reinterpret_cast<uint4*>(to + column * STRIDE + half * 64 + w * 16) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }

  const ExpertProductParams& p_;
  const int columns_left_;
  const int64_t place_;  // of the tile's first column among the rows of `weight`
};

template <bool IS_CODED>
struct WeightsOf {
  using Type = FloatWeights;
};
template <>
struct WeightsOf<true> {
  using Type = CodedWeights;
};
using TileWeights = WeightsOf<WEIGHT != FLOATS>::Type;

// The shape of a block's tile of a product, and its copies to shared memory: rows of x and of the weight, TILE_INPUTS inputs
// at a time in a ring of stages, copied asynchronously, RING - 1 ahead. A row of shared memory has an odd number of 16-byte
// chunks, so that the eight rows of a matrix are in different banks.
#pragma once
#include "device.cuh"

struct ExpertProductParams {
  void* out;               // [rows, outputs] OUT of each group
  const void* x;           // SCALAR
  const void* weight;      // [outputs, inputs] SCALAR of each group
  const float* bias;       // [groups, outputs], or null
  const int32_t* sources;  // row of x of each out row, or null: the same
  const int32_t* starts;   // [groups + 1], group g has the out rows [starts[g], starts[g + 1]); or null: each has `rows`
  int64_t x_stride, weight_stride;           // elements from row to row, multiples of 8
  int64_t x_group, weight_group, out_group;  // elements from group to group, the first two multiples of 8
  int64_t out_stride;                        // elements from row to row
  int32_t rows, inputs, outputs;             // inputs: of a group, a multiple of 8
};

constexpr int TILE_ROWS = 16 * WARP_ROWS * ROW_PARTS, TILE_COLUMNS = 16 * WARP_COLUMNS * COLUMN_PAIRS;
constexpr int TILE_INPUTS = 64, CHUNKS = TILE_INPUTS / 8, STRIDE = (CHUNKS | 1) * 16;
constexpr int STAGE_BYTES = (TILE_ROWS + TILE_COLUMNS) * STRIDE;
constexpr int ROW_STEP = THREADS / CHUNKS;  // a thread copies one chunk of every ROW_STEP-th row
static_assert(THREADS == 32 * WARP_ROWS * WARP_COLUMNS && SHARED_BYTES == RING * STAGE_BYTES && RING >= 2);
static_assert(TILE_ROWS % ROW_STEP == 0 && TILE_COLUMNS % ROW_STEP == 0);

// A block's group and its rows; `rows` are all rows of the group.
struct Group {
  int index, first, rows;
  DEVICE explicit Group(const ExpertProductParams& p) : index(blockIdx.y) {
    first = p.starts ? p.starts[index] : 0;
    rows = p.starts ? p.starts[index + 1] - first : p.rows;
  }
};

// The stages of the tile of rows from `first_row` of the group on, and of columns from `first_column` on.
class Stages {
 public:
  DEVICE Stages(const ExpertProductParams& p, const Group& group, int first_row, int first_column, unsigned char* ring)
      : inputs_(p.inputs), ring_(ring) {
    const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS * 8;
    const SCALAR* x = static_cast<const SCALAR*>(p.x) + group.index * p.x_group + chunk;
#pragma unroll
    for (int i = 0; i < X_ROWS; i++) {
      const int at = first_row + row + i * ROW_STEP;
      x_[i] = nullptr;
      if (at >= group.rows) continue;
      const int place = group.first + at;
      x_[i] = x + (p.sources ? p.sources[place] : place) * p.x_stride;
    }
    const SCALAR* weight = static_cast<const SCALAR*>(p.weight) + group.index * p.weight_group + chunk;
    weight_ = weight + (first_column + row) * p.weight_stride;
    weight_step_ = ROW_STEP * p.weight_stride;
    columns_left_ = p.outputs - first_column - row;
  }

  DEVICE void start() {
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++) ask();
  }
  // The next stage: rows of x, then of the weight. It invalidates the result of the previous call.
  DEVICE const unsigned char* next() {
    copy_wait<RING - 2>();
    __syncthreads();  // all copies have arrived, and all threads are done with the stage that is filled next
    ask();
    const unsigned char* stage = ring_ + read_ * STAGE_BYTES;
    read_ = read_ + 1 == RING ? 0 : read_ + 1;
    return stage;
  }

 private:
  static constexpr int X_ROWS = TILE_ROWS / ROW_STEP, WEIGHT_ROWS = TILE_COLUMNS / ROW_STEP;

  // Starts the next copy, if any is left; rows, columns and inputs beyond the last become zeros. It always closes a group
  // of copies, so that next() can count groups.
  DEVICE void ask() {
    const int chunk = threadIdx.x % CHUNKS;
    if (asked_ < inputs_) {
      const bool has_inputs = asked_ + chunk * 8 < inputs_;
      unsigned char* to = ring_ + filled_ * STAGE_BYTES + threadIdx.x / CHUNKS * STRIDE + chunk * 16;
#pragma unroll
      for (int i = 0; i < X_ROWS; i++, to += ROW_STEP * STRIDE) copy_async16(to, x_[i] + asked_, has_inputs && x_[i]);
#pragma unroll
      for (int i = 0; i < WEIGHT_ROWS; i++, to += ROW_STEP * STRIDE)
        copy_async16(to, weight_ + i * weight_step_ + asked_, has_inputs && i * ROW_STEP < columns_left_);
      asked_ += TILE_INPUTS;
    }
    copy_commit();
    filled_ = filled_ + 1 == RING ? 0 : filled_ + 1;
  }

  const int inputs_;
  unsigned char* const ring_;
  const SCALAR* x_[X_ROWS];  // this thread's chunk of each row; null: there is no such row
  const SCALAR* weight_;
  int64_t weight_step_;
  int columns_left_;  // from this thread's first column on
  int asked_ = 0, filled_ = 0, read_ = 0;
};

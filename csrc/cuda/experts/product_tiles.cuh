// The copies of a block's tile of a product to shared memory: rows of x and of the weight, TILE_INPUTS inputs at a time in a
// ring of stages, copied asynchronously, RING - 1 ahead.
#pragma once
#include "experts/product_weights.cuh"

// A block's group and its rows; `rows` are all rows of the group.
struct Group {
  int index, first, rows;
  DEVICE explicit Group(const ExpertProductParams& p) : index(blockIdx.y) {
    first = p.starts ? p.starts[index] : 0;
    rows = p.starts ? p.starts[index + 1] - first : p.rows;
  }
};

constexpr int STAGE_BYTES = TILE_ROWS * STRIDE + TileWeights::BYTES;
static_assert(SHARED_BYTES == RING * STAGE_BYTES + TileWeights::EXPANDED_BYTES && RING >= 2);

// The stages of the tile of rows from `first_row` of the group on, and of columns from `first_column` on.
class Stages {
 public:
  DEVICE Stages(const ExpertProductParams& p, const Group& group, int first_row, int first_column, unsigned char* ring)
      : inputs_(p.inputs), ring_(ring), weights_(p, group.index, first_column) {
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
  }

  DEVICE void start() {
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++) ask();
  }
  // The next stage: rows of x, and `weights`. It invalidates the results of the previous call.
  DEVICE const unsigned char* next(const unsigned char*& weights) {
    copy_wait<RING - 2>();
    __syncthreads();  // all copies have arrived, and all threads are done with the stage that is filled next
    ask();
    const unsigned char* stage = ring_ + read_ * STAGE_BYTES;
    read_ = read_ + 1 == RING ? 0 : read_ + 1;
    weights = weights_.arrived(stage + TILE_ROWS * STRIDE, ring_ + RING * STAGE_BYTES);
    return stage;
  }

 private:
  static constexpr int X_ROWS = TILE_ROWS / ROW_STEP;

  // Starts the next copy, if any is left; rows, columns and inputs beyond the last become zeros. It always closes a group
  // of copies, so that next() can count groups.
  DEVICE void ask() {
    const int chunk = threadIdx.x % CHUNKS;
    if (asked_ < inputs_) {
      const bool has_inputs = asked_ + chunk * 8 < inputs_;
      unsigned char* const stage = ring_ + filled_ * STAGE_BYTES;
      unsigned char* to = stage + threadIdx.x / CHUNKS * STRIDE + chunk * 16;
#pragma unroll
      for (int i = 0; i < X_ROWS; i++, to += ROW_STEP * STRIDE) copy_async16(to, x_[i] + asked_, has_inputs && x_[i]);
      weights_.ask(stage + TILE_ROWS * STRIDE, asked_, inputs_);
      asked_ += TILE_INPUTS;
    }
    copy_commit();
    filled_ = filled_ + 1 == RING ? 0 : filled_ + 1;
  }

  const int inputs_;
  unsigned char* const ring_;
  const SCALAR* x_[X_ROWS];  // this thread's chunk of each row; null: there is no such row
  const TileWeights weights_;
  int asked_ = 0, filled_ = 0, read_ = 0;
};

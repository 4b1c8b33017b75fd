// out = x * weight^T + bias for each group: an expert's rows and its own weight, or a segment of the inputs of all rows.
//
// Grid (tiles of columns, groups, any): blocks of the third dimension loop over the group's tiles of rows. How many rows an
// expert has is read on the device, so a captured graph is valid for any tokens; an expert without rows reads nothing.
//
// Every shape gives the same bits: an element is one chain of mma.m16n8k16 over the group's inputs in ascending order,
// rounded once, whichever tile, warp or row of a matrix computes it; inputs past the last are zeros. So the shape may depend on the
// number of rows. Small tiles (16 x 64) are for few rows: blocks are many, and little is padding. Large ones (64 x 128)
// read a row and a weight less often. Matrices of 16 rows without a row are not multiplied.
//
// Floors on an H200: few rows read the weights of the experts that have any (8 of 128 experts of 2,048 x 768, one token:
// 75 MB a layer, 18 us at 4.3 TB/s); many take 2 * rows * inputs * outputs operations, of which matrix loads
// from shared memory allow about 400 TFLOP/s with the large tiles [E]. On an H100, 8 rows and more read as fast as a copy,
// and many reach 126 TFLOP/s.
//
// -D SCALAR: bf16 or fp16. OUT: SCALAR's or float. WARP_ROWS, WARP_COLUMNS: warps of a block. ROW_PARTS: of 16 rows, and
// COLUMN_PAIRS: of 16 columns, of a warp. RING: stages. WEIGHT: FLOATS, or 4-bit codes: INT4, E2M1 (OCP Microscaling Formats
// 1.0; scales of half its numbers). SCALES: of 64 codes, 1, 2 or 4. HAS_ZEROS: 0 or 1, of INT4; without zero points 8 is zero.
// THREADS, SHARED_BYTES.
#include "experts/product_tiles.cuh"

using Sums = float[ROW_PARTS][2 * COLUMN_PAIRS][4];

// A warp's part of a tile.
struct Part {
  int lane, row, column;  // the first of the part, in the tile
  DEVICE Part() : lane(threadIdx.x % 32) {
    const int warp = threadIdx.x / 32;
    row = warp % WARP_ROWS * ROW_PARTS * 16, column = warp / WARP_ROWS * COLUMN_PAIRS * 16;
  }
};

// `rows`: rows of the tile.
DEVICE void multiply(Sums& sums, const unsigned char* x, const unsigned char* weight, const Part& part, int rows) {
  x += (part.row + part.lane % 16) * STRIDE + part.lane / 16 * 16;
  weight += (part.column + part.lane % 8 + part.lane / 16 * 8) * STRIDE + part.lane / 8 % 2 * 16;
#pragma unroll
  for (int k = 0; k < TILE_INPUTS / 16; k++) {
    uint32_t b[COLUMN_PAIRS][4];  // columns 0-7, inputs 0-7 | 8-15, then columns 8-15
#pragma unroll
    for (int j = 0; j < COLUMN_PAIRS; j++) load_matrices(b[j], weight + j * 16 * STRIDE + k * 32);
#pragma unroll
    for (int i = 0; i < ROW_PARTS; i++) {
      if (part.row + i * 16 >= rows) break;
      uint32_t a[4];
      load_matrices(a, x + i * 16 * STRIDE + k * 32);
#pragma unroll
      for (int j = 0; j < COLUMN_PAIRS; j++) {
        multiply_add<SCALAR>(sums[i][2 * j], a, b[j][0], b[j][1]);
        multiply_add<SCALAR>(sums[i][2 * j + 1], a, b[j][2], b[j][3]);
      }
    }
  }
}

DEVICE void store2(float* out, float x, float y, bool has_second) {
  out[0] = x;
  if (has_second) out[1] = y;
}
template <class T>
DEVICE void store2(T* out, float x, float y, bool) {  // outputs are even
  *reinterpret_cast<uint32_t*>(out) = pack2<T>(x, y);
}

DEVICE void store(const Sums& sums, const ExpertProductParams& p, const Group& group, int first_row, int first_column) {
  const Part part;
  OUT* const out = static_cast<OUT*>(p.out) + group.index * p.out_group;
  const float* bias = p.bias ? p.bias + int64_t(group.index) * p.outputs : nullptr;
#pragma unroll
  for (int i = 0; i < ROW_PARTS; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = first_row + part.row + i * 16 + half * 8 + part.lane / 4;
      if (row >= group.rows) continue;
#pragma unroll
      for (int j = 0; j < 2 * COLUMN_PAIRS; j++) {
        const int column = first_column + part.column + j * 8 + part.lane % 4 * 2;
        if (column >= p.outputs) continue;
        const bool has_second = column + 1 < p.outputs;
        float x = sums[i][j][2 * half], y = sums[i][j][2 * half + 1];
        if (bias) x += bias[column], y += has_second ? bias[column + 1] : 0.f;
        store2(out + int64_t(group.first + row) * p.out_stride + column, x, y, has_second);
      }
    }
}

KERNEL(expert_product, ExpertProductParams) {
  DYNAMIC_SHARED(shared);
  const Group group(p);
  const int first_column = blockIdx.x * TILE_COLUMNS;
  for (int row = blockIdx.z * TILE_ROWS; row < group.rows; row += gridDim.z * TILE_ROWS) {
    Stages stages(p, group, row, first_column, shared);
    stages.start();
    Sums sums = {};
    for (int k = 0; k < p.inputs; k += TILE_INPUTS) {
      const unsigned char* weights;
      const unsigned char* const x = stages.next(weights);
      multiply(sums, x, weights, Part(), group.rows - row);
    }
    store(sums, p, group, row, first_column);
    __syncthreads();  // the next tile overwrites memory that other warps may still read
  }
}

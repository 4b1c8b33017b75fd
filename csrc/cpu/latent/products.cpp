// head_gemm: the product of each head's part of a row with the head's own weight, y = x * weight^T.
//
// Algorithm  a thread computes whole products (gemm/) alone, so bits are those of that product
// Shapes     x [rows, heads, inputs], y [rows, heads, outputs], both with any strides; weight [heads] packed matrices
// Tile       that of the product
// Threads    divide the heads, and the rows of a head if there are few heads
// Floor      few rows: the weights are read once, bytes / read bandwidth; many rows: 2 * rows * heads * outputs * inputs flop
// Achieved   one core of Zen 4, 16 heads of 128 x 512 and of 512 x 128: 1 row 0.79 and 0.88 of the read bandwidth; 32 rows
//            0.87 and 0.92 of peak
#include <algorithm>

#include "latent/latent.h"
#include "pool.h"

namespace {

constexpr int FEWEST_ROWS = 64;  // of a head that are computed together if threads have too few heads

template <class Product> void for_heads(Pool* pool, const HeadGemmParams& p, size_t x_bytes, Product product) {
  const GemmParams& all = p.product;
  if (all.rows == 0) return;
  const size_t y_bytes = all.y_dtype == DTYPE_FP32 ? sizeof(float) : sizeof(uint16_t);
  const int wanted = (ITEMS_PER_THREAD * pool->size() + p.heads - 1) / p.heads;
  const int cuts = pool->size() == 1 ? 1 : std::clamp((all.rows + FEWEST_ROWS - 1) / FEWEST_ROWS, 1, wanted);
  pool->run_spans(p.heads * cuts, 1, [&](int begin, int end) {
    static const int32_t ANY_CPU = -1;
    thread_local Pool alone(&ANY_CPU, 1, false, 0);
    for (int item = begin; item < end; item++) {
      const int head = item / cuts, cut = item % cuts;
      const int64_t first = (int64_t)all.rows * cut / cuts, last = (int64_t)all.rows * (cut + 1) / cuts;
      GemmParams part = all;
      part.rows = (int)(last - first);
      part.x = (const char*)all.x + (first * all.x_stride + head * p.x_step) * x_bytes;
      part.y = (char*)all.y + (first * all.y_stride + head * p.y_step) * y_bytes;
      part.weight = (const char*)all.weight + head * p.weight_stride;
      product(&alone, &part);
    }
  });
}

}  // namespace

void head_gemm_bf16(Pool* pool, const HeadGemmParams* p) { for_heads(pool, *p, sizeof(uint16_t), gemm_bf16); }
void head_gemm_bf16_tile(Pool* pool, const HeadGemmParams* p) { for_heads(pool, *p, sizeof(uint16_t), gemm_bf16_tile); }
void head_gemm_fp32(Pool* pool, const HeadGemmParams* p) { for_heads(pool, *p, sizeof(float), gemm_fp32); }
void head_gemm_fp16(Pool* pool, const HeadGemmParams* p) { for_heads(pool, *p, sizeof(uint16_t), gemm_fp16); }
void head_gemm_fp16_tile(Pool* pool, const HeadGemmParams* p) { for_heads(pool, *p, sizeof(uint16_t), gemm_fp16_tile); }

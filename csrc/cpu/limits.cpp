// limits: the machine's best rates, against which scripts/kernel_speed/bench_kernels.py compares kernels.
//
// Algorithm  read_memory: every thread folds its share of a buffer into four vectors by exclusive or, and does nothing else.
//            peak: every thread repeats the dot product of tile.h on registers, in more chains than the latency needs.
//            With tiles, the same in four chains of dot products of whole tiles: AMX's peak.
//            products: one thread repeats gemm's tile of bfloat16 on a panel in the nearest cache; this includes the
//            conversion of words before they are multiplied. The loader chooses between two libraries by this rate.
// Floor      these are the floors: 32 GB/s and 231 Gflop/s (bfloat16) for one core of Zen 4.
#include "api.h"
#include "isa/float_mode.h"
#include "pool.h"
#include "tiles/tile.h"
#include "tiles/tiles.h"

namespace {

constexpr int64_t CHUNK_BYTES = 1 << 20, STEP = 4 * sizeof(I32);
constexpr int AHEAD_BYTES = 4096;  // next to a busy core, reading without prefetches is a third slower

int32_t fold_chunk(const char* p, int64_t bytes) {
  I32 folded[4] = {};
  for (int64_t i = 0; i + STEP <= bytes; i += STEP) {
    for (int line = 0; line < STEP; line += 64) prefetch<1>(p + i + AHEAD_BYTES + line);
    EACH(v, 4) folded[v] ^= load_words(p + i + v * sizeof(I32));
  }
  const I32 all = (folded[0] ^ folded[1]) ^ (folded[2] ^ folded[3]);
  int32_t lanes[LANES], word = 0;
  std::memcpy(lanes, &all, sizeof all);
  for (int32_t lane : lanes) word ^= lane;
  return word;
}

template <class X> inline void hide(X& x) {
  if constexpr (requires { x.even; }) opaque(x.even), opaque(x.odd);
  else opaque(x);
}

// The tile with a panel and rows of one word each, which stay in the first-level cache or in registers.
template <class F, class Out> int64_t repeat_dot(int64_t steps) {
  constexpr int ROWS = MOST_ROWS<F>, N = STRIP<ROWS>;
  alignas(64) static const int32_t ones[PANEL] = {};
  typename F::Acc acc[ROWS][N] = {};
  typename F::Weights w = F::weights(ones);
  typename F::Row x = F::row(ones);
  for (int64_t k = 0; k < steps; k++) {
    EACH(m, ROWS) EACH(v, N) {
      hide(w);
      hide(x);
      acc[m][v] = F::dot(acc[m][v], w, x);
      hide(acc[m][v]);
    }
  }
  Out used = {};  // otherwise the compiler removes all of the above
  EACH(m, ROWS) EACH(v, N) used += sum(acc[m][v]);
  [[maybe_unused]] volatile Out sink = used;
  const int64_t per_dot = std::is_same_v<F, Fp32> ? 2 : std::is_same_v<F, Int8> ? 8 : 4;  // two operations per product
  return steps * ROWS * N * LANES * per_dot;
}

// A block of rows times four of words, as in products; nothing is loaded meanwhile.
template <class T> int64_t repeat_tile_dot(int64_t steps) {
  alignas(64) static const char zeros[PIECE_BYTES] = {};
  typename T::Sum sums[TILE_ROWS * TILE_OUTPUTS];
  {
    TileRegisters<T> tiles;
    tiles.set_rows(TILE_ROWS);
    tiles.template zero<0>(), tiles.template zero<1>(), tiles.template zero<2>(), tiles.template zero<3>();
    tiles.template load_rows<4>(zeros, PIECE_ROW_BYTES), tiles.template load_words<5>(zeros);
    tiles.template load_words<6>(zeros), tiles.template load_words<7>(zeros);
    for (int64_t k = 0; k < steps; k++) {
      tiles.template dot<0, 4, 5>(), tiles.template dot<1, 4, 6>();
      tiles.template dot<2, 4, 7>(), tiles.template dot<3, 4, 5>();
    }
    tiles.template store<3>(sums, TILE_OUTPUTS);
  }
  [[maybe_unused]] volatile typename T::Sum sink = sums[0];
  const int per_word = std::is_same_v<T, Int8Tiles> ? 8 : 4;  // two operations per product
  return steps * 4 * TILE_ROWS * TILE_OUTPUTS * PIECE_WORDS * per_word;
}

constexpr int PRODUCT_WORDS = 32;  // a panel of 8 KB
using Product = std::conditional_t<WIDENS_BF16, WideBf16, Bf16>;

}  // namespace

int64_t product_operations(int64_t times) {
  constexpr int ROWS = MOST_ROWS<Product>, X_BYTES = PRODUCT_WORDS * WordLayout<Product>::X_BYTES;
  const FlushDenormals meanwhile;
  alignas(64) static const char panel[PRODUCT_WORDS * STEP_BYTES] = {}, x[ROWS * X_BYTES] = {};
  alignas(64) float out[ROWS * PANEL];
  for (int64_t i = 0; i < times; i++) product<Product, ROWS>(out, PANEL, x, X_BYTES, panel, PRODUCT_WORDS);
  return times * ROWS * PANEL * PRODUCT_WORDS * 4;
}

int32_t read_memory(Pool* pool, const void* p, int64_t bytes) {
  const int chunks = (int)(bytes / CHUNK_BYTES);
  int32_t folded = 0;
  pool->run(chunks, 1 + (chunks - 1) / pool->size(), [&](int begin, int end) {
    const int32_t part = fold_chunk((const char*)p + begin * CHUNK_BYTES, (end - begin) * CHUNK_BYTES);
    __atomic_fetch_xor(&folded, part, __ATOMIC_RELAXED);
  });
  return folded;
}

int64_t peak_operations(Pool* pool, int32_t format, int64_t steps) {
  int64_t operations = 0;
  pool->run(pool->size(), 1, [&](int begin, int end) {
    for (int i = begin; i < end; i++) {
      const int64_t done = format == 0   ? repeat_dot<Bf16, float>(steps)
                           : format == 1 ? repeat_dot<Fp32, float>(steps)
                           : format == 2 ? repeat_dot<Int8, int32_t>(steps)
                           : format == 3 ? repeat_tile_dot<Bf16Tiles>(steps)
                                         : repeat_tile_dot<Int8Tiles>(steps);
      __atomic_fetch_add(&operations, done, __ATOMIC_RELAXED);
    }
  });
  return operations;
}

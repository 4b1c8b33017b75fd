// Tiles in memory, multiplied by the vectors of isa.h. Vocabulary: tiles.h.
#pragma once

constexpr bool TILES_ARE_INSTRUCTIONS = false;

// Vectors of outputs, and rows, that are multiplied at once, with two chains each: enough to hide the latency of FMA, and
// few enough to leave registers for split words.
constexpr int FMA_VECTORS = LANES == 16 ? 1 : 2;
constexpr int FMA_ROWS = LANES == 16 ? 8 : 2;

// sums[ROWS][TILE_OUTPUTS] += rows * FMA_VECTORS vectors of words, over one piece.
template <int ROWS> [[gnu::noipa]] void add_piece(Bf16Tiles, float* sums, const char* rows, size_t stride, const char* words) {
  constexpr int N = FMA_VECTORS;
  F32 even[ROWS][N] = {}, odd[ROWS][N] = {};
  EACH(m, ROWS) EACH(v, N) opaque(even[m][v]), opaque(odd[m][v]);  // as in tile.h
#pragma GCC unroll 1
  for (int k = 0; k < PIECE_WORDS; k++, rows += WORD_BYTES, words += STEP_BYTES) {
    F32 w[N][2];
    EACH(v, N) {
      const I32 both = load_words(words + v * sizeof(I32));
      w[v][0] = (F32)even_half(both), w[v][1] = (F32)odd_half(both);
    }
    EACH(m, ROWS) {
      const I32 both = repeat_word(rows + m * stride);
      const F32 x[2] = {(F32)even_half(both), (F32)odd_half(both)};
      EACH(v, N) even[m][v] = add_product_bf16(even[m][v], w[v][0], x[0]);
      EACH(v, N) odd[m][v] = add_product_bf16(odd[m][v], w[v][1], x[1]);
    }
  }
  EACH(m, ROWS) EACH(v, N) {
    float* at = sums + m * TILE_OUTPUTS + v * LANES;
    store(at, load(at) + (even[m][v] + odd[m][v]));
  }
}

template <int ROWS> [[gnu::noipa]] void add_piece(Int8Tiles, int32_t* sums, const char* rows, size_t stride, const char* words) {
  constexpr int N = FMA_VECTORS;
  I32 acc[ROWS][N];
  EACH(m, ROWS) EACH(v, N) acc[m][v] = load_words(sums + m * TILE_OUTPUTS + v * LANES);
#pragma GCC unroll 1
  for (int k = 0; k < PIECE_WORDS; k++, rows += WORD_BYTES, words += STEP_BYTES)
    step<Int8, ROWS, N>(acc, rows, stride, [&](int v) { return Int8::weights(words + v * sizeof(I32)); }, [](int) {});
  EACH(m, ROWS) EACH(v, N) store_words(sums + m * TILE_OUTPUTS + v * LANES, acc[m][v]);
}

template <class T> class TileRegisters {
 public:
  using Sum = typename T::Sum;

  void set_rows(int rows) { rows_ = rows; }

  template <int SUMS> void zero() { std::memset(sums_[SUMS], 0, sizeof sums_[SUMS]); }
  template <int SUMS> void load(const Sum* from, size_t stride) {
    for (int m = 0; m < rows_; m++) std::memcpy(row(SUMS, m), from + m * stride, TILE_OUTPUTS * sizeof(Sum));
  }
  template <int SUMS> void store(Sum* to, size_t stride) {
    for (int m = 0; m < rows_; m++) std::memcpy(to + m * stride, row(SUMS, m), TILE_OUTPUTS * sizeof(Sum));
  }
  template <int ROWS> void load_rows(const char* from, size_t stride) { from_[ROWS] = from, stride_[ROWS] = stride; }
  template <int WORDS> void load_words(const char* from) { from_[WORDS] = from; }

  template <int SUMS, int ROWS, int WORDS> void dot() {
    int m = 0;
    for (; m + FMA_ROWS <= rows_; m += FMA_ROWS) add<FMA_ROWS>(SUMS, m, ROWS, WORDS);
    if constexpr (FMA_ROWS > 4)
      if (m + 4 <= rows_) add<4>(SUMS, m, ROWS, WORDS), m += 4;
    for (; m < rows_; m++) add<1>(SUMS, m, ROWS, WORDS);
  }

 private:
  Sum* row(int sums, int m) { return sums_[sums] + m * TILE_OUTPUTS; }

  template <int COUNT> void add(int sums, int m, int rows, int words) {
    const char* from = from_[rows] + m * stride_[rows];
    for (int c = 0; c < TILE_OUTPUTS; c += FMA_VECTORS * LANES)
      add_piece<COUNT>(T{}, row(sums, m) + c, from, stride_[rows], from_[words] + c * WORD_BYTES);
  }

  alignas(64) Sum sums_[4][TILE_ROWS * TILE_OUTPUTS];
  const char* from_[8];
  size_t stride_[8];
  int rows_;
};

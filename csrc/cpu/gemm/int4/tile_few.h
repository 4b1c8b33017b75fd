// Few rows times a group of 4-bit weights in tile order, without tiles: codes are expanded in registers, not to a panel,
// which for one row takes longer than the products.
#pragma once
#include <type_traits>
#include "gemm/int4/groups.h"
#include "gemm/int4/mxfp4.h"
#include "gemm/tile_product.h"

constexpr int PIECE_OCTETS = PIECE_WORDS / OCTET_WORDS;
constexpr int FEW_TILE_ROWS = 2;
// Vectors of outputs at once: each has two sums per row, and codes take registers, too, those of e2m1 the most.
template <int ROWS, class Codes>
constexpr int FEW_STRIP = LANES == 16 ? 4 : REGISTERS == 32 || (ROWS == 1 && !std::is_same_v<Codes, E2m1Codes>) ? 2 : 1;

// product[ROWS][N] += rows times a piece of N vectors of outputs, of which `octets` are not padding.
template <int ROWS, int N, class Codes>
inline void add_piece(F32 (&product)[ROWS][N], const char* x, size_t x_stride, const char* lanes, int octets, const Codes& codes) {
  F32 even[ROWS][N] = {}, odd[ROWS][N] = {};
  EACH(m, ROWS) EACH(v, N) opaque(even[m][v]), opaque(odd[m][v]);  // as in tile.h
#pragma GCC unroll 1
  for (int c = 0; c < octets; c++, lanes += STEP_BYTES, x += OCTET_WORDS * WORD_BYTES) {
    EACH(v, N) prefetch<1>(lanes + NEAR_BYTES + v * sizeof(I32));
    EACH(j, OCTET_WORDS) {
      Halves row[ROWS];
      EACH(m, ROWS) row[m] = halves(repeat_word(x + m * x_stride + j * WORD_BYTES));
      EACH(v, N) {
        const Halves w = halves(codes.word(load_words(lanes + v * sizeof(I32)), j));
        EACH(m, ROWS) even[m][v] = add_product_bf16(even[m][v], (F32)w.even, (F32)row[m].even);
        EACH(m, ROWS) odd[m][v] = add_product_bf16(odd[m][v], (F32)w.odd, (F32)row[m].odd);
      }
    }
  }
  if (octets < PIECE_OCTETS)  // a product of padding is +0, which makes one of a sum of -0
    EACH(m, ROWS) EACH(v, N) even[m][v] += splat(0.0f), odd[m][v] += splat(0.0f);
  EACH(m, ROWS) EACH(v, N) product[m][v] += even[m][v] + odd[m][v];
}

// sums[ROWS][PANEL] += the scaled products of a group, each piece of which has PARTS pieces of rows.
template <int ROWS, int PARTS, class Codes>
[[gnu::noipa]] void add_few(float* sums, const TileRows& x, const char* group, const Int4Layout& layout, const Codes& codes, const float* of_x) {
  constexpr int N = FEW_STRIP<ROWS, Codes>;
  const char* octets = group + layout.codes_at;
  for (int v = 0; v < PANEL_VECTORS; v += N) {
    F32 product[ROWS][N] = {};
    for (int c = 0, piece = 0; c < layout.octets; c += PIECE_OCTETS)
      for (int part = 0; part < PARTS; part++, piece++)
        add_piece(product, x.piece(piece), x.row_bytes, octets + c * STEP_BYTES + v * sizeof(I32), std::min(PIECE_OCTETS, layout.octets - c), codes);
    add_scaled(sums, product, group, v * LANES, layout, of_x);
  }
}

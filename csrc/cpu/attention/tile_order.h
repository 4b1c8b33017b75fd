// The two products of attention in tile order (tiles/tiles.h), for bfloat16; the same for any number of rows.
//
// Order of additions   a score is the sum of pieces of 32 elements of the head, from 0; the last piece is padded with
//                      zeros. The sums of weighted values are multiplied by the factor by which they shrink, then add
//                      pieces of 32 positions, see attention.h.
//
// Keys and values are repacked into panels for few rows (decode) as well; this takes a core about a quarter of the time
// that reading them from memory takes.
#pragma once
#include "attention/products.h"
#include "gemm/tile_product.h"

constexpr int VALUE_PIECES = HALF_KEYS / (2 * PIECE_WORDS);  // of half a tile
constexpr int TILED_ROWS = 2 * TILE_ROWS;                    // that are computed together

inline int head_pieces(int words) { return ceil_div(words, PIECE_WORDS); }

// The block of up to 16 rows from `first` on, a multiple of 16, of `rows` rows of `bytes` bytes. If PACKED, a block has piece 0
// of all its rows, then piece 1 of all its rows, and so on; otherwise the pieces of each row are consecutive.
template <bool PACKED> inline TileRows block_of(const char* at, int rows, int first, size_t bytes) {
  const int count = std::min(rows - first, TILE_ROWS);
  const size_t row_bytes = PACKED ? PIECE_ROW_BYTES : bytes, piece_bytes = PACKED ? count * PIECE_ROW_BYTES : PIECE_ROW_BYTES;
  return {at + first * bytes, row_bytes, piece_bytes, count};
}

// Where a row of PACKED blocks begins.
inline char* packed_row(char* at, int rows, int row, size_t bytes, size_t& piece_bytes) {
  const int first = row / TILE_ROWS * TILE_ROWS;
  piece_bytes = std::min(TILE_ROWS, rows - first) * PIECE_ROW_BYTES;
  return at + first * bytes + (row - first) * PIECE_ROW_BYTES;
}

inline void pack_query_row(char* to, size_t piece_bytes, const char* query, size_t row_bytes) {
  for (size_t byte = 0; byte < row_bytes; byte += PIECE_ROW_BYTES, to += piece_bytes) {
    const size_t count = std::min(PIECE_ROW_BYTES, row_bytes - byte);
    std::memcpy(to, query + byte, count);
    std::memset(to + count, 0, PIECE_ROW_BYTES - count);
  }
}

// keys -> panel[head_pieces][PIECE_WORDS][HALF_KEYS] words by position.
template <class Kv> void pack_tile_keys(char* panel, const Sizes<Kv>& size, const char* const* keys, const char* const* ahead) {
  pack_keys<Kv, true>(panel, size, keys, ahead);
  const int filled = head_pieces(size.words) * PIECE_WORDS - size.words;
  std::memset(panel + size.words * STEP_BYTES, 0, filled * STEP_BYTES);
}

// scores[rows][TILE_KEYS] of a half, from its panel of keys.
inline void tile_scores(TileRegisters<Bf16Tiles>& t, float* scores, const TileRows& query, const char* panel, int pieces) {
  multiply_block(t, scores, TILE_KEYS, false, query, {panel, pieces, nullptr}, 0, pieces);
}

// sums[rows][columns] = keep * sums + weights[rows][TILE_KEYS] times `halves` halves of a tile's panels of values.
inline void tile_values(TileRegisters<Bf16Tiles>& t, float* sums, int columns, const float* keep, const char* weights, int rows,
                        const char* panels, int halves) {
  for (int m = 0; m < rows; m++) {
    if (keep[m] == 1) continue;
    float* row = sums + (size_t)m * columns;
    for (int c = 0; c < columns; c += LANES) store(row + c, load(row + c) * splat(keep[m]));
  }
  for (int c = 0; c < columns; c += PANEL, panels += 2 * VALUE_PIECES * PIECE_BYTES)
    for (int m = 0; m < rows; m += TILE_ROWS) {
      const TileRows block = block_of<false>(weights, rows, m, TILE_KEYS * sizeof(Bfloat16));
      float* out = sums + (size_t)m * columns + c;
      multiply_block(t, out, columns, true, block, {panels, 2 * VALUE_PIECES, nullptr}, 0, halves * VALUE_PIECES);
    }
}

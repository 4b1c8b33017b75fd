// The vocabulary of the *tile* order of summation: eight registers of 16 rows of 64 bytes, and a dot product of two of
// them onto a third. AMX has them; everywhere else they lie in memory and are multiplied by fp32 FMA, with the same bits.
//
//   sums   16 rows x 16 outputs      float, or int32_t for Int8Tiles; fewer rows where there are fewer
//   rows   16 rows x 16 words of K   a word is 32 bits along K, as in tile.h: two bfloat16 or four int8
//   words  16 words x 16 outputs     a fourth of a panel's width, as it lies
//
// A dot takes a *piece* of K: 16 words, 32 bfloat16. Of bfloat16 it is, for each output,
//
//   even = fma(x[0], w[0], 0), fma(x[2], w[2], even), ... over the even inputs of the piece in order
//   odd  = the same over the odd inputs
//   sum  = sum + (even + odd)
//
// each step one float operation that takes denormals for zeros and gives none: TDPBF16PS's, found by a study of that
// instruction on a million outputs. K is cut into pieces from its start, or a segment's or group's start; the last is
// filled up with zeros, on both sides. Of int8 (signed rows, unsigned words) sums are exact, so no order shows.
//
// Registers 0 to 3 hold sums. For one block of up to 16 rows 4 holds rows, and 5 to 7 words; for two, the first of 16,
// 4 and 5 hold the rows of each, 6 and 7 words, and sums 2 and 3 belong to the second block.
//
// Both bodies define, for T of Bf16Tiles or Int8Tiles,
//   TileRegisters<T>      on the stack of the code that multiplies; what it holds is lost with it
//   one(rows), two(rows)  how many rows the one block has, or the second of two; before anything else
//   zero, load, store     sums; `stride` in elements
//   load_rows             from rows `stride` bytes apart
//   load_words            of a panel, whose steps of K are STEP_BYTES apart
//   dot<SUMS, ROWS, WORDS>
#pragma once
#include <algorithm>
#include <type_traits>

#include "tiles/tile.h"

constexpr int TILE_ROWS = 16, TILE_OUTPUTS = 16;
constexpr int PIECE_WORDS = 16;
constexpr size_t PIECE_ROW_BYTES = PIECE_WORDS * WORD_BYTES;    // of a row
constexpr size_t PIECE_BYTES = PIECE_WORDS * STEP_BYTES;        // of a panel
constexpr size_t TILE_COLUMN_BYTES = TILE_OUTPUTS * WORD_BYTES;  // of a step of a panel

struct Bf16Tiles {
  using Sum = float;
};
struct Int8Tiles {
  using Sum = int32_t;
};

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include "tiles/amx.h"
#else
#include "tiles/fma.h"
#endif

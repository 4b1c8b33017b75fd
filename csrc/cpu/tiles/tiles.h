// The vocabulary of the *tile* order of summation: eight registers of 16 rows of 64 bytes, and a dot product that adds the
// product of two of them to a third. AMX has them; elsewhere they are in memory and are multiplied by fp32 FMA, with the
// same bits.
//
//   sums   16 rows x 16 outputs      float, or int32_t for Int8Tiles; fewer rows at the end
//   rows   16 rows x 16 words of K   a word is 32 bits along K, as in tile.h: two bfloat16 or four int8
//   words  16 words x 16 outputs     a quarter of a panel's width, unchanged
//
// A dot multiplies a *piece* of K: 16 words, 32 bfloat16. For bfloat16, each output is
//
//   even = fma(x[0], w[0], 0), fma(x[2], w[2], even), ... over the even inputs of the piece in order
//   odd  = the same over the odd inputs
//   sum  = sum + (even + odd)
//
// where each step is one float operation that reads denormals as zeros and returns none. These are the steps of TDPBF16PS,
// as a study of that instruction on a million outputs showed. K is divided into pieces from its start, or from the start
// of a segment or group; the last piece is padded with zeros in rows and words. Sums of int8 (signed rows, unsigned words)
// are exact, so their order does not matter. float16 is multiplied as the sum of two bfloat16, see gemm/split.h.
//
// Registers 0 to 3 hold sums, 4 rows, and 5 to 7 words.
//
// Both bodies define, for T = Bf16Tiles or Int8Tiles,
//   TileRegisters<T>      on the stack of the code that multiplies; its contents end with it
//   set_rows(rows)        the number of rows of sums and of register 4; to be called first
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
constexpr size_t PIECE_ROW_BYTES = PIECE_WORDS * WORD_BYTES;    // a piece of a row
constexpr size_t PIECE_BYTES = PIECE_WORDS * STEP_BYTES;        // a piece of a panel
constexpr size_t TILE_COLUMN_BYTES = TILE_OUTPUTS * WORD_BYTES;  // 16 outputs of a step of a panel

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

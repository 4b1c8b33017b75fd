// The scratch memory of a thread in attention: a tile's panels, scores and weights of a block of rows, and of each head of
// an item its queries and its sums so far.
#pragma once
#include "attention/bias.h"
#include "attention/cache/gather.h"
#include "attention/cache/int8.h"
#include "attention/plan.h"
#include "attention/products.h"
#include "attention/tile_order.h"

// The sums of some rows; their number is not stored here.
struct Sums {
  float* values;  // [rows][columns]: weighted values, not normalised
  float* top;     // [rows]: the highest score
  float* total;   // [rows]: the sum of the weights
};

// Bytes of a row of queries, and of a panel of half a tile's keys.
template <class Kv, bool TILED> size_t query_bytes(const Sizes<typename Kv::Computed>& size) {
  return TILED ? head_pieces(size.words) * PIECE_ROW_BYTES : size.row_dim * sizeof(typename Kv::Row);
}
template <class Kv, bool TILED> size_t half_panel(const Sizes<typename Kv::Computed>& size) {
  return TILED ? head_pieces(size.words) * PIECE_BYTES : size.words * PANEL_STEP<Kv>;
}

// Rows that are computed together: with panels, and the most in any case.
template <class Kv> constexpr int PANEL_BLOCK = MOST_ROWS<typename Kv::F>;
template <class Kv, bool TILED> constexpr int LARGEST_BLOCK = TILED ? TILED_ROWS : std::max(PANEL_BLOCK<Kv>, DIRECT_BLOCK);

// The fewest rows of a block with panels, if blocks have at most `most`: those of a unit are as even as can be.
constexpr int fewest_of_panel(int most) {
  int fewest = most;
  for (int rows = DIRECT_ROWS + 1; rows <= DIRECT_ROWS + most; rows++) fewest = std::min(fewest, rows / ((rows + most - 1) / most));
  return fewest;
}

// The part of one KV head of an item.
struct HeadScratch {
  int head;
  char* query;
  float* totals;  // [rows][WIDE], of the range's weights
  Sums range, all;
  const float* slopes;  // [group], of the head's queries; or null
  float* biases;        // their copies of the table of relative positions, see attention/bias.h
};

// Memory that is valid until the thread creates another Scratch.
template <class Kv, bool TILED> struct Scratch : HeadScratch {
  using Element = typename Kv::Element;
  static constexpr size_t COLUMN_BYTES = 2 * HALF_WORDS<Kv> * PANEL_STEP<Kv> / PANEL;  // of a tile's values

  char *keys, *values, *copies;  // a tile's panels; copies of values with masked ones replaced, or of all listed rows
  float *scores, *keep;          // of a block of rows
  typename Kv::Row* weights;
  Expansion<Element> expansion;         // of codes
  TileRegisters<Bf16Tiles>* registers;  // in tile order
  HeadScratch heads[MOST_HEADS];

  // Makes the members of HeadScratch those of the item's head `i`.
  void select(int i) { static_cast<HeadScratch&>(*this) = heads[i]; }

  Scratch(int rows, const Sizes<typename Kv::Computed>& size, const AttentionParams& p, int first_head, int count) {
    constexpr int BLOCK = LARGEST_BLOCK<Kv, TILED>;
    thread_local Arena arena;
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
      Carver carve(pass ? arena.reserve(bytes) : nullptr);
      keys = carve.take<char>(2 * half_panel<Kv, TILED>(size));
      values = carve.take<char>((size_t)size.columns * COLUMN_BYTES);
      copies = carve.take<char>((lists_rows(p) ? TILE_KEYS : 2 * STREAM_KEYS) * size.row_bytes);
      scores = carve.take<float>(BLOCK * TILE_KEYS);
      weights = carve.take<typename Kv::Row>(BLOCK * TILE_KEYS);
      keep = carve.take<float>(BLOCK);
      if constexpr (IS_CODED<Kv>)
        expansion = {carve.take<Element>(TILE_KEYS * size.row_dim), carve.take<Element>(TILE_KEYS * size.row_dim),
                     carve.take<float>(TILE_KEYS), carve.take<float>(TILE_KEYS)};
      for (int i = 0; i < count; i++) {
        HeadScratch& h = heads[i];
        h.head = first_head + i;
        h.query = carve.take<char>(rows * query_bytes<Kv, TILED>(size));
        h.totals = carve.take<float>(rows * WIDE);
        h.slopes = p.slopes ? p.slopes + h.head * p.group : nullptr;
        h.biases = carve.take<float>(p.group * bias_floats(p));
        for (Sums* sums : {&h.range, &h.all})
          *sums = {carve.take<float>((size_t)rows * size.columns), carve.take<float>(rows), carve.take<float>(rows)};
      }
      bytes = carve.used();
    }
    for (int i = 0; i < count; i++) copy_biases(p, heads[i].head, heads[i].biases);
  }
};

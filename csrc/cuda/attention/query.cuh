// The queries of an item, and their products with keys, for paged and latent attention. A warp keeps its rows' queries in
// registers; those of wide heads, which would take 4 * HEAD_DIM / 16 registers, stay in shared memory.
#pragma once
#include "attention/values.cuh"

constexpr int QUERY_BYTES = ROWS * STRIDE;

// Starts to copy the item's queries; rows that do not exist become 0. The caller closes the group of copies.
DEVICE void copy_query(unsigned char* shared, const Item& item) {
  const SCALAR* query = static_cast<const SCALAR*>(item.p.query);
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * HEAD_DIM / 8; i += THREADS) {
    const int row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8);
    const bool valid = row < item.work.rows;
    const int64_t at = valid ? item.at(row, item.p.query_stride) + chunk * 8 : 0;
    copy_async16(shared + row * STRIDE + chunk * 16, query + at, valid);
  }
}
// The rows of this warp, of which a lane loads the matrices from there on.
DEVICE const unsigned char* query_of(const unsigned char* shared, const Item& item) {
  return shared + (item.row_warp * 16 + item.lane % 16) * STRIDE + item.lane / 16 * 16;
}

using Pair = uint32_t[4];  // 16 rows of 16 dims, as multiply_add takes them

struct KeptQuery {
  static constexpr int UNROLL = PAIRS;
  Pair pairs[PAIRS];

  DEVICE explicit KeptQuery(const unsigned char* rows) {
#pragma unroll
    for (int k = 0; k < PAIRS; k++) load_matrices(pairs[k], rows + k * 32);
  }
  DEVICE const Pair& pair(int k, Pair&) const { return pairs[k]; }
};
struct SharedQuery {
  static constexpr int UNROLL = 4;
  const unsigned char* rows;

  DEVICE explicit SharedQuery(const unsigned char* rows) : rows(rows) {}
  DEVICE const Pair& pair(int k, Pair& loaded) const {
    load_matrices(loaded, rows + k * 32);
    return loaded;
  }
};

// The scores of this warp's rows with its part of the tile's keys.
template <class Query>
DEVICE void score(Scores& scores, const Query& query, const unsigned char* keys, const Item& item) {
  const int key = item.share * WARP_KEYS + item.lane % 8 + item.lane / 16 * 8;
  const unsigned char* row = keys + key * STRIDE + item.lane / 8 % 2 * 16;
#pragma unroll Query::UNROLL
  for (int k = 0; k < PAIRS; k++) {
    Pair loaded;
    const Pair& a = query.pair(k, loaded);
#pragma unroll
    for (int t = 0; t < MINE; t++) {
      uint32_t b[4];  // keys 0-7, dims 0-7 | 8-15, then keys 8-15
      load_matrices(b, row + t * 16 * STRIDE + k * 32);
      multiply_add<SCALAR>(scores[2 * t], a, b[0], b[1]);
      multiply_add<SCALAR>(scores[2 * t + 1], a, b[2], b[3]);
    }
  }
}

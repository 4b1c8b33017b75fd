// A request's keys and values in the paged cache, and the copy of one tile of either to shared memory. A row of shared
// memory has an odd number of 16-byte chunks, so that the eight rows of a matrix are in different banks for every HEAD_DIM.
#pragma once
#include "attention/work.cuh"

constexpr int ELEMENTS = 16 / sizeof(KV);                         // per chunk of the cache
constexpr int CHUNKS = HEAD_DIM / ELEMENTS;                       // per row of the cache
constexpr int COPIED_STRIDE = (CHUNKS | 1) * 16;                  // bytes from row to row of a copied half
constexpr int STRIDE = (HEAD_DIM / 8 | 1) * 16;                   // bytes from row to row of SCALAR
constexpr int SLOT_BYTES = TILE_KEYS * COPIED_STRIDE;
constexpr int PAIRS = HEAD_DIM / 16;                              // of 8 dims; a warp multiplies whole pairs
constexpr int WARP_KEYS = TILE_KEYS / SHARING;                    // keys whose scores one warp computes
static_assert(HEAD_DIM % 16 == 0 && WARP_KEYS % 16 == 0);

struct Source {
  const KV* keys;    // of this KV head in block 0
  const KV* values;
  const int* table;  // of this request
  int64_t block_elements;
  int from, to;  // other keys read as zeros: their blocks may not exist or may hold anything
};

DEVICE void copy_half(unsigned char* slot, const KV* cache, const Source& source, int first_key) {
#pragma unroll
  for (int i = threadIdx.x; i < TILE_KEYS * CHUNKS; i += THREADS) {
    const int row = i / CHUNKS, chunk = i % CHUNKS, key = first_key + row;
    const bool valid = key >= source.from && key < source.to;
    int64_t at = 0;
    if (valid) at = source.table[key / BLOCK_SIZE] * source.block_elements + key % BLOCK_SIZE * HEAD_DIM + chunk * ELEMENTS;
    copy_async16(slot + row * COPIED_STRIDE + chunk * 16, cache + at, valid);
  }
}

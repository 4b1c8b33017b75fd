// A request's keys and values in the paged cache, and the copy of one tile of either to shared memory. A row of shared
// memory has an odd number of 16-byte chunks, so that the eight rows of a matrix are in different banks for every HEAD_DIM.
#pragma once
#include "attention/work.cuh"

constexpr int ELEMENTS = 16 / sizeof(KV);                         // per chunk of the cache
constexpr int CHUNKS = HEAD_DIM / ELEMENTS;                       // per row of the cache
constexpr int UNIT = CHUNKS & -CHUNKS;                            // chunks; 31 bits count units, and addresses need a shift
constexpr int COPIED_STRIDE = (CHUNKS | 1) * 16;                  // bytes from row to row of a copied half
constexpr int STRIDE = (HEAD_DIM / 8 | 1) * 16;                   // bytes from row to row of SCALAR
constexpr int SLOT_BYTES = TILE_KEYS * COPIED_STRIDE;
constexpr int PAIRS = HEAD_DIM / 16;                              // of 8 dims; a warp multiplies whole pairs
constexpr int PLACES_BYTES = 2 * TILE_KEYS * 4;
constexpr int WARP_KEYS = TILE_KEYS / SHARING;                    // keys whose scores one warp computes
static_assert(HEAD_DIM % 16 == 0 && WARP_KEYS % 16 == 0 && THREADS >= TILE_KEYS);

struct Source {
  const KV* keys;    // of this KV head in block 0
  const KV* values;
  const int* table;  // of this request
  int block_rows;    // from a block's row to the same row of the next block
  int from, to;  // other keys read as zeros: their blocks may not exist or may hold anything
};

constexpr uint32_t NOWHERE = 1u << 31;  // of a row that does not exist

// Where the rows of a tile are in the cache. A thread looks up a row's block while the tile before is computed, so that
// copies wait for no table and divide nothing.
class Places {
 public:
  DEVICE Places(const Source& source, unsigned char* shared) : source_(source), shared_(reinterpret_cast<uint32_t*>(shared)) {}

  // Begins to look up the tile of the keys from `first_key` on.
  DEVICE void look_up(int first_key) {
    key_ = threadIdx.x < TILE_KEYS ? first_key + int(threadIdx.x) : source_.to;
    if (exists()) block_ = source_.table[uint32_t(key_) / BLOCK_SIZE];
  }
  // Makes the tile that was looked up the current one: for all threads after the next barrier.
  DEVICE void publish() {
    turn_ ^= TILE_KEYS;
    if (threadIdx.x >= TILE_KEYS) return;
    const uint32_t row = uint32_t(block_) * source_.block_rows + uint32_t(key_) % BLOCK_SIZE;
    shared_[turn_ + threadIdx.x] = exists() ? row * (CHUNKS / UNIT) : NOWHERE;
  }
  // For each row of the current tile the units from the first block's row to it, or NOWHERE.
  DEVICE const uint32_t* current() const { return shared_ + turn_; }

 private:
  DEVICE bool exists() const { return key_ >= source_.from && key_ < source_.to; }

  const Source& source_;
  uint32_t* const shared_;  // [2][TILE_KEYS]
  int key_ = 0, block_ = 0, turn_ = 0;
};

DEVICE void copy_half(unsigned char* slot, const KV* cache, const uint32_t* places) {
  constexpr bool KEEPS_CHUNK = THREADS % CHUNKS == 0;  // all copies of a thread are of one column
  const uint4* chunks = reinterpret_cast<const uint4*>(cache);
#pragma unroll
  for (uint32_t first = 0; first < TILE_KEYS * CHUNKS; first += THREADS) {
    const uint32_t i = first + threadIdx.x, chunk = KEEPS_CHUNK ? threadIdx.x % CHUNKS : i % CHUNKS;
    const uint32_t row = KEEPS_CHUNK ? first / CHUNKS + threadIdx.x / CHUNKS : i / CHUNKS;
    if (TILE_KEYS * CHUNKS % THREADS != 0 && i >= TILE_KEYS * CHUNKS) break;
    const uint32_t place = places[row];
    const uint4* from = chunks + chunk + int64_t(place & ~NOWHERE) * UNIT;
    copy_async16(slot + row * COPIED_STRIDE + chunk * 16, from, place < NOWHERE);
  }
}

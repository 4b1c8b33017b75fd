// Copies keys and values from the paged cache to shared memory: half tiles K0 V0 K1 V1 ... in a ring of slots, copied
// asynchronously, RING - 1 ahead; with a single slot each is waited for. When an fp8 half has arrived, the warps that read it widen it to SCALAR.
#pragma once
#include "attention/source.cuh"

constexpr bool WIDENS = sizeof(KV) == 1;
constexpr int WIDE_BYTES = WIDENS ? TILE_KEYS * STRIDE : 0;
constexpr int PENDING = RING > 1 ? RING - 2 : 0;  // copies that may be under way when one is read
static_assert(RING >= 1);

// Widens 16 elements of one row.
DEVICE void widen16(unsigned char* to, const unsigned char* from) {
  const uint4 bytes = *reinterpret_cast<const uint4*>(from);
  const uint32_t fours[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
  uint32_t wide[8];
#pragma unroll
  for (int i = 0; i < 8; i++) wide[i] = widen2<SCALAR>(uint16_t(fours[i / 2] >> i % 2 * 16));
  reinterpret_cast<uint4*>(to)[0] = make_uint4(wide[0], wide[1], wide[2], wide[3]);
  reinterpret_cast<uint4*>(to)[1] = make_uint4(wide[4], wide[5], wide[6], wide[7]);
}

class HalfTiles {
 public:
  DEVICE HalfTiles(const Source& source, unsigned char* ring)
      : source_(source), ring_(ring), places_(source, ring + RING * SLOT_BYTES + WIDE_BYTES),
        next_key_(source.from / TILE_KEYS * TILE_KEYS) {}

  DEVICE void start() {
    places_.look_up(next_key_);
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++) {
      if (!asks_values_) {
        places_.publish();
        __syncthreads();  // before the first copies by the new places
      }
      ask();
    }
  }
  // The next tile's keys that this warp scores. They invalidate the result of the previous call.
  DEVICE const unsigned char* keys(int warp_of_row) {
    const unsigned char* half = arrived();
    if constexpr (!WIDENS) return half;
    else if constexpr (ROW_WARPS > 1) return widened(half, 0, TILE_KEYS, 0, 1, threadIdx.x, THREADS);
    else return widened(half, warp_of_row * WARP_KEYS, WARP_KEYS, 0, 1, threadIdx.x % 32, 32);
  }
  // The values of the same tile. They invalidate the result of the previous call.
  DEVICE const unsigned char* values(int warp_of_row) {
    const unsigned char* half = arrived();
    if constexpr (!WIDENS) return half;
    else if constexpr (ROW_WARPS > 1) return widened(half, 0, TILE_KEYS, 0, 1, threadIdx.x, THREADS);
    else return widened(half, 0, TILE_KEYS, warp_of_row, SHARING, threadIdx.x % 32, 32);
  }

 private:
  // Starts the next copy, if any is left. It always closes a group, so that arrived() can count groups.
  DEVICE void ask() {
    if (next_key_ < source_.to) {
      copy_half(ring_ + filled_ * SLOT_BYTES, asks_values_ ? source_.values : source_.keys, places_.current());
      if (asks_values_) places_.look_up(next_key_ += TILE_KEYS);
      asks_values_ = !asks_values_;
    }
    copy_commit();
    filled_ = filled_ + 1 == RING ? 0 : filled_ + 1;
  }
  DEVICE const unsigned char* arrived() {
    if (!asks_values_) places_.publish();
    if (RING > 1) copy_wait<PENDING>();
    __syncthreads();  // all copies have arrived, and all threads are done with the slot that is filled next
    ask();
    if (RING == 1) {
      copy_wait<0>();
      __syncthreads();
    }
    const unsigned char* half = ring_ + read_ * SLOT_BYTES;
    read_ = read_ + 1 == RING ? 0 : read_ + 1;
    return half;
  }
  // Widens rows [first_row, first_row + rows), pairs first_pair, first_pair + pair_step, ...
  DEVICE const unsigned char* widened(const unsigned char* half, int first_row, int rows, int first_pair, int pair_step,
                                      int thread, int threads) {
    unsigned char* wide = ring_ + RING * SLOT_BYTES;
    for (int i = thread; i < (PAIRS - first_pair + pair_step - 1) / pair_step * rows; i += threads) {
      const int row = first_row + i % rows, pair = first_pair + i / rows * pair_step;
      widen16(wide + row * STRIDE + pair * 32, half + row * COPIED_STRIDE + pair * 16);
    }
    if (threads == 32) __syncwarp();
    else __syncthreads();
    return wide;
  }

  const Source& source_;
  unsigned char* const ring_;
  Places places_;
  int next_key_, filled_ = 0, read_ = 0;
  bool asks_values_ = false;
};

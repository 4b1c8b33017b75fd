// The places of tokens among rows that are sorted by expert, and by token for one expert. Places are counted, without
// atomics: block h has the rank's expert h, counts the entries of its earlier experts, and then numbers its own in their order. The
// last block has the entries of other ranks' experts.
// Each block reads all entries twice from level 2: 8 * entries * (held + 1) bytes, 68 MB for 8,192 tokens, 8 of 128
// experts, about 15 us at 5 TB/s [E].
//
// -D TOP_K: entries of a token. THREADS, SHARED_BYTES. Grid: held + 1.
#include "device.cuh"

struct PlaceExpertsParams {
  int32_t* places;         // [rows, TOP_K]; -1 for an expert of another rank
  int32_t* sources;        // [rows * TOP_K] row of each place in use
  int32_t* starts;         // [held + 1]
  const int32_t* experts;  // [rows, TOP_K]
  int32_t rows, first, held;  // this rank has the experts from `first` on
};

constexpr int WARPS = THREADS / 32;
static_assert(SHARED_BYTES == WARPS * 4);

// Over the threads of a block: the number before this one that have `is_in`; `total` grows by the number of all. `scratch`
// may be used again after the next barrier.
DEVICE int count_before(bool is_in, int& total, int* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t lanes = __ballot_sync(ALL_LANES, is_in);
  if (lane == 0) scratch[warp] = __popc(lanes);
  __syncthreads();
  int before = total + __popc(lanes & ((1u << lane) - 1));
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    if (i < warp) before += scratch[i];
    total += scratch[i];
  }
  return before;
}

KERNEL(place_experts, PlaceExpertsParams) {
  DYNAMIC_SHARED(shared);
  int* const scratch = reinterpret_cast<int*>(shared);
  const int own = blockIdx.x, entries = p.rows * TOP_K;
  int next = 0;
  for (int base = 0; base < entries; base += THREADS) {
    const int i = base + threadIdx.x;
    count_before(i < entries && uint32_t(p.experts[i] - p.first) < uint32_t(own), next, scratch);
    __syncthreads();
  }
  if (threadIdx.x == 0) p.starts[own] = next;
  for (int base = 0; base < entries; base += THREADS) {
    const int i = base + threadIdx.x;
    const uint32_t expert = i < entries ? uint32_t(p.experts[i] - p.first) : uint32_t(-1);
    const int place = count_before(expert == uint32_t(own), next, scratch);
    __syncthreads();
    if (own < p.held) {
      if (expert == uint32_t(own)) p.places[i] = place, p.sources[place] = i / TOP_K;
    } else if (i < entries && expert >= uint32_t(own)) {
      p.places[i] = -1;
    }
  }
}

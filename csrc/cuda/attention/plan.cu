// Fills the work lists of paged attention from lengths on the device, so that a captured graph is valid for any lengths.
// One block; launched once per step and mask, before the layers. A request of at most `decode_rows` rows is divided into
// items of `decode_tile` rows and one split each; a longer one into items of `prefill_tile` rows and all their keys, the
// longest first. Results do not depend on this: it only decides where work runs. When the buffer of parts is full, the
// remaining requests are not split. First each thread counts a request, then each warp writes a request.
//
// -D THREADS, SHARED_BYTES.
#include "attention/work.cuh"

struct AttentionPlanParams {
  Work* decode;           // rows of all requests / decode_tile + requests + max_slots
  Work* prefill;          // rows of all requests / prefill_tile + requests
  Merge* merges;          // rows of all requests / decode_tile + requests
  Counts* counts;
  const int* row_starts;  // [requests + 1] first token of each; a request may have none
  const int* kv_lens;     // [requests]
  int requests, group, window, attention_chunk, is_bidirectional;
  int decode_rows, decode_tile, prefill_tile, max_slots;
};

struct Request {
  int rows, past, tile_rows, tiles, first_split, splits;  // splits of each tile; 1: not split
  int first_work, first_merge, slot;
  bool decodes;
};
constexpr int WARPS = THREADS / 32;
static_assert(SHARED_BYTES == WARPS * 4 + THREADS * sizeof(Request));

// The sum of x over the threads before this one; the sum over all threads is added to `total`.
DEVICE int scan(int x, int& total, int* scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = x, before = total;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(ALL_LANES, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    if (i < warp) before += scratch[i];
    total += scratch[i];
  }
  __syncthreads();
  return before + sum - x;
}

DEVICE int first_seen(const AttentionPlanParams& p, int position) {
  if (p.attention_chunk > 0) return position / p.attention_chunk * p.attention_chunk;
  return p.window > 0 ? max(0, position - p.window + 1) : 0;
}

DEVICE Request request_at(const AttentionPlanParams& p, int index) {
  Request r = {};
  const int tokens = index < p.requests ? p.row_starts[index + 1] - p.row_starts[index] : 0;
  if (tokens == 0) return r;
  r.rows = tokens * p.group, r.past = p.kv_lens[index] - tokens;
  r.decodes = r.rows <= p.decode_rows;
  r.tile_rows = r.decodes ? p.decode_tile : p.prefill_tile;
  r.tiles = (r.rows + r.tile_rows - 1) / r.tile_rows;
  r.first_split = first_seen(p, r.past) / SPLIT_KEYS;
  r.splits = r.decodes ? (r.past + tokens - 1) / SPLIT_KEYS - r.first_split + 1 : 1;
  return r;
}

DEVICE void write_work(const AttentionPlanParams& p, const Request& r, int index, int item) {
  const int tile = r.decodes ? item / r.splits : r.tiles - 1 - item, split = r.decodes ? item % r.splits : 0;
  const int first_row = tile * r.tile_rows, rows = min(r.tile_rows, r.rows - first_row);
  int from = first_seen(p, r.past + first_row / p.group);
  int to = p.is_bidirectional ? p.kv_lens[index] : r.past + (first_row + rows - 1) / p.group + 1;
  int slot = -1;
  if (r.splits > 1) {
    const int first = (r.first_split + split) * SPLIT_KEYS;
    from = max(from, first), to = min(to, first + SPLIT_KEYS);
    slot = r.slot + first_row * r.splits + split * rows;
    if (split == 0) p.merges[r.first_merge + tile] = {index, first_row, rows, slot, r.splits};
  }
  (r.decodes ? p.decode : p.prefill)[r.first_work + item] = {index, first_row, rows, from, to, slot};
}

KERNEL(attention_plan, AttentionPlanParams) {
  DYNAMIC_SHARED(shared);
  Request* const requests = reinterpret_cast<Request*>(shared);
  int* const scratch = reinterpret_cast<int*>(requests + THREADS);
  Counts counts = {};
  int slots = 0;
  for (int base = 0; base < p.requests; base += THREADS) {
    Request r = request_at(p, base + threadIdx.x);
    const int needed = r.splits > 1 ? r.rows * r.splits : 0;
    r.slot = scan(needed, slots, scratch);
    if (r.splits > 1 && r.slot + needed > p.max_slots) r.splits = 1;
    const int items = r.tiles * r.splits;
    const int decode = scan(r.decodes ? items : 0, counts.decode, scratch);
    const int prefill = scan(r.decodes ? 0 : items, counts.prefill, scratch);
    r.first_work = r.decodes ? decode : prefill;
    r.first_merge = scan(r.splits > 1 ? r.tiles : 0, counts.merges, scratch);
    requests[threadIdx.x] = r;
    __syncthreads();
    for (int i = threadIdx.x / 32; i < THREADS && base + i < p.requests; i += WARPS)
      for (int item = threadIdx.x % 32; item < requests[i].tiles * requests[i].splits; item += 32)
        write_work(p, requests[i], base + i, item);
    __syncthreads();
  }
  if (threadIdx.x == 0) *p.counts = counts;
}

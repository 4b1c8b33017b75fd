// Draws a token by inverting the cumulative distribution of the tokens that min-p and the cut left, by ids: sampler.cuh.
// It is the first token at which the mass exceeds `uniform` times the total, as on the host. For each tile of 256 tokens
// the mass above the cut and the number of tokens at the cut are computed; the last block of a row then knows which of the
// latter stay, adds up the tiles, and searches the tile that contains the target. Shared memory: Scratch.
#include "sampler/sampler.cuh"

constexpr uint64_t ONE_TIE = 1ull << 53;  // above the mass of a tile, at most 2^52
static_assert(SHARED_BYTES == sizeof(Scratch));

DEVICE uint64_t high_product(uint64_t a, uint64_t b) {  // a * b / 2^64
  const uint64_t a0 = uint32_t(a), a1 = a >> 32, b0 = uint32_t(b), b1 = b >> 32;
  const uint64_t middle = (a0 * b0 >> 32) + uint32_t(a1 * b0) + uint32_t(a0 * b1);
  return a1 * b1 + (a1 * b0 >> 32) + (a0 * b1 >> 32) + (middle >> 32);
}

DEVICE void sum_tiles(const SamplerParams& p, const float* logits, const Weights& weights, uint32_t cut, uint64_t* tiles) {
  const int end = min(int(blockIdx.x + 1) * (SLICE / TILE), tiles_of(p.vocab));
  for (int tile = blockIdx.x * (SLICE / TILE) + threadIdx.x / 32; tile < end; tile += WARPS) {
    float part[TILE_PARTS];
    load_tile(part, logits, tile, p.vocab);
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < TILE_PARTS; i++) {
      const uint32_t key = key_of(part[i]);
      sum += key > cut ? weights(part[i]) : key == cut ? ONE_TIE : 0;
    }
    sum = warp_total(sum);
    if (threadIdx.x % 32 == 0) tiles[tile] = sum;
  }
}

// Writes to `scratch`, for all threads: the tile, the rest of the target in it, and which of its ties stay.
DEVICE void find_tile(const SamplerParams& p, const SamplerState& state, uint64_t tie, const uint64_t* tiles, Scratch& scratch) {
  const int num_tiles = tiles_of(p.vocab), share = (num_tiles + THREADS - 1) / THREADS;
  const int from = threadIdx.x * share, to = min(from + share, num_tiles);
  uint64_t ties = 0, own = 0, total;
  for (int tile = from; tile < to; tile++) ties += tiles[tile] / ONE_TIE;
  uint64_t ties_before = block_prefix(ties, scratch, total);
  const auto first = [](uint64_t in_tile, uint64_t earlier, uint32_t number) {  // the tile's ties among the first `number`
    const uint64_t room = number > earlier ? number - earlier : 0;
    return in_tile < room ? in_tile : room;
  };
  const auto kept = [&](uint64_t in_tile, uint64_t earlier) {
    return first(in_tile, earlier, state.cut_ties) - first(in_tile, earlier, state.skipped_ties);
  };
  for (int tile = from; tile < to; tile++) own += tiles[tile] % ONE_TIE;
  own += kept(ties, ties_before) * tie;
  uint64_t before = block_prefix(own, scratch, total);
  const uint64_t target = high_product(state.uniform, total);
  if (before <= target && target < before + own) {
    for (int tile = from; tile < to; tile++) {
      const uint64_t here = tiles[tile] / ONE_TIE, stay = kept(here, ties_before);
      const uint64_t mass = tiles[tile] % ONE_TIE + stay * tie;
      if (target < before + mass) {
        scratch.place = tile, scratch.left = target - before;
        scratch.skipped = uint32_t(first(here, ties_before, state.skipped_ties));
        scratch.ties = scratch.skipped + uint32_t(stay);
        break;
      }
      before += mass, ties_before += here;
    }
  }
  __syncthreads();
}

// Finds the token in the tile; one warp calls it.
DEVICE void draw_in_tile(const SamplerParams& p, const float* logits, const Weights& weights, uint32_t cut, const Scratch& scratch) {
  const uint32_t lower_lanes = (1u << threadIdx.x % 32) - 1;
  uint64_t left = scratch.left;
  uint32_t ties = 0;  // seen so far
  float part[TILE_PARTS];
  load_tile(part, logits, scratch.place, p.vocab);
#pragma unroll
  for (int i = 0; i < TILE_PARTS; i++) {
    const uint32_t key = key_of(part[i]), tied = __ballot_sync(ALL_LANES, key == cut);
    const uint32_t tie = ties + __popc(tied & lower_lanes);
    const bool stays = key > cut || (key == cut && tie >= scratch.skipped && tie < scratch.ties);
    const uint64_t own = stays ? weights(part[i]) : 0, sum = warp_prefix(own);
    if (sum > left && sum - own <= left)
      p.token_ids[p.rows[blockIdx.y].index] = scratch.place * TILE + i * 32 + threadIdx.x % 32;
    const uint64_t all = __shfl_sync(ALL_LANES, sum, 31);
    left = all > left ? ~0ull : left - all;  // once found, no later sum is above it
    ties += __popc(tied);
  }
}

KERNEL(sampler_draw, SamplerParams) {
  DYNAMIC_SHARED(shared);
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  const SamplerRow& row = p.rows[blockIdx.y];
  const SamplerState& state = p.states[blockIdx.y];
  if (row.flags & GREEDY || state.bad) return;
  const Weights weights(row, state);
  const float* logits = p.logits + row.source * p.stride;
  uint64_t* tiles = p.tiles + int64_t(blockIdx.y) * tiles_of(p.vocab);
  sum_tiles(p, logits, weights, state.cut_key, tiles);
  if (!is_last_block(p.finished + blockIdx.y, scratch)) return;
  const uint64_t tie = state.cut_key ? weights(logit_of(state.cut_key)) : 0;
  find_tile(p, state, tie, tiles, scratch);
  if (threadIdx.x < 32) draw_in_tile(p, logits, weights, state.cut_key, scratch);
}

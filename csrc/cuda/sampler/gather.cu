// Lists the tokens above a row's cut and its ties, in any order, each as (~key, id) in 64 bits: sorted ascending, they are
// in rank order: sampler.cuh. Shared memory: Scratch.
#include "sampler/sampler.cuh"

static_assert(SHARED_BYTES == sizeof(Scratch));

// Called by a warp for a tile: `listed` has a bit for each of the tile's tokens, in words of 32; set bits are listed.
DEVICE void list_tokens(const SamplerParams& p, const uint32_t (&listed)[TILE_PARTS], const float (&part)[TILE_PARTS], int tile) {
  const int lane = threadIdx.x % 32;
  uint32_t count = 0, place = 0;
#pragma unroll
  for (int i = 0; i < TILE_PARTS; i++) count += __popc(listed[i]);
  if (count == 0) return;
  if (lane == 0) place = atomicAdd(&p.states[blockIdx.y].gathered, count);
  place = __shfl_sync(ALL_LANES, place, 0);
  uint64_t* list = p.lists + p.rows[blockIdx.y].list;
#pragma unroll
  for (int i = 0; i < TILE_PARTS; i++) {
    const uint32_t token = tile * TILE + i * 32 + lane, earlier = __popc(listed[i] & ((1u << lane) - 1));
    if (listed[i] >> lane & 1) list[place + earlier] = uint64_t(~key_of(part[i])) << 32 | token;
    place += __popc(listed[i]);
  }
}

// Lists the tokens above the cut in the block's slice; writes to `tiles` the number of tokens at the cut in each tile.
DEVICE void list_slice(const SamplerParams& p, const float* logits, uint32_t cut, uint64_t* tiles) {
  const uint32_t above = cut ? cut : KEY_OF_MASKED;
  const int end = min(int(blockIdx.x + 1) * (SLICE / TILE), tiles_of(p.vocab));
  for (int tile = blockIdx.x * (SLICE / TILE) + threadIdx.x / 32; tile < end; tile += WARPS) {
    float part[TILE_PARTS];
    load_tile(part, logits, tile, p.vocab);
    uint32_t listed[TILE_PARTS], ties = 0;
#pragma unroll
    for (int i = 0; i < TILE_PARTS; i++) {
      listed[i] = __ballot_sync(ALL_LANES, key_of(part[i]) > above);
      ties += __popc(__ballot_sync(ALL_LANES, key_of(part[i]) == cut));
    }
    list_tokens(p, listed, part, tile);
    if (threadIdx.x % 32 == 0) tiles[tile] = ties;
  }
}

// Replaces each tile's number of ties by the number of ties before it, or by NO_TIES if the tile has none.
constexpr uint64_t NO_TIES = ~0ull;
DEVICE void count_ties_before(uint64_t* tiles, int num_tiles, Scratch& scratch) {
  const int share = (num_tiles + THREADS - 1) / THREADS, from = threadIdx.x * share, to = min(from + share, num_tiles);
  uint64_t own = 0, total;
  for (int tile = from; tile < to; tile++) own += tiles[tile];
  uint64_t before = block_prefix(own, scratch, total);
  for (int tile = from; tile < to; tile++) {
    const uint64_t here = tiles[tile];
    tiles[tile] = here ? before : NO_TIES;
    before += here;
  }
  __syncthreads();
}

// Called by the last block of a row: lists the first `cut_ties` tokens at the cut.
DEVICE void list_ties(const SamplerParams& p, const float* logits, const SamplerState& state, const uint64_t* tiles) {
  for (int tile = threadIdx.x / 32; tile < tiles_of(p.vocab); tile += WARPS) {
    if (tiles[tile] >= state.cut_ties) continue;
    uint32_t earlier = uint32_t(tiles[tile]), listed[TILE_PARTS];
    float part[TILE_PARTS];
    load_tile(part, logits, tile, p.vocab);
#pragma unroll
    for (int i = 0; i < TILE_PARTS; i++) {
      const bool is_tie = key_of(part[i]) == state.cut_key;
      const uint32_t ties = __ballot_sync(ALL_LANES, is_tie), lower = ties & ((1u << threadIdx.x % 32) - 1);
      listed[i] = __ballot_sync(ALL_LANES, is_tie && earlier + __popc(lower) < state.cut_ties);
      earlier += __popc(ties);
    }
    list_tokens(p, listed, part, tile);
  }
}

KERNEL(sampler_gather, SamplerParams) {
  DYNAMIC_SHARED(shared);
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared);
  const SamplerRow& row = p.rows[blockIdx.y];
  const SamplerState& state = p.states[blockIdx.y];
  if (row.list < 0 || state.bad) return;
  const float* logits = p.logits + row.source * p.stride;
  uint64_t* tiles = p.tiles + int64_t(blockIdx.y) * tiles_of(p.vocab);
  list_slice(p, logits, state.cut_key, tiles);
  if (!is_last_block(p.finished + blockIdx.y, scratch) || state.cut_key == 0) return;
  count_ties_before(tiles, tiles_of(p.vocab), scratch);
  list_ties(p, logits, state, tiles);
}

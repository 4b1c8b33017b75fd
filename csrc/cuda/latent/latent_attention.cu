// out = softmax(scale * Q K^T, masked) V over the paged cache of latent attention: all heads share one key, whose first
// VALUE_DIM elements are its value. A key passes through shared memory once for both products.
//
// Grid (any): blocks loop over a list of work that attention/plan.cu wrote; an item is up to 16 * ROW_WARPS rows of one
// request, row = token * GROUP + head. Bits are those of attention/paged_attention.cu's construction: a row's scores are whole
// products over HEAD_DIM in steps of 16, its weights and their totals one function of a tile of 64 keys, its sums add keys
// in steps of 16. Tiles begin at multiples of 64; sums start from 0 at multiples of 512, and these parts are joined in
// order, by this kernel or by attention/merge.cu. So every shape, chunk and split gives the same bits.
//
// Queries stay in shared memory, because they would take 4 * HEAD_DIM / 16 registers. SHARING warps have the same rows: each
// scores a part of a tile's keys and sums a part of the dims. The joined sums of earlier splits stay in registers.
//
// Floors on an H200, bf16, 128 heads of 576 / 512: a decode step takes 2 * 128 * (576 + 512) operations per cached token
// and reads 1,152 bytes, four times from level 2: a block has 32 of the 128 rows. Matrix loads from shared memory limit it to
// about 300 TFLOP/s [E]: batch 32 of 4,096 tokens takes 0.12 ms. An H100 takes 0.47 ms.
//
// -D SCALAR and KV: bf16 or fp16. HEAD_DIM, VALUE_DIM: multiples of 16. GROUP: heads. BLOCK_SIZE. ROW_WARPS, SHARING.
// STAGES: tiles in shared memory, 1 or 2. IS_BIDIRECTIONAL and ATTENTION_CHUNK are 0. THREADS, SHARED_BYTES.
#include "attention/query.cuh"
#include "attention/total.cuh"

constexpr int VALUE_PAIRS = VALUE_DIM / 16;
static_assert(VALUE_DIM % 16 == 0 && VALUE_DIM <= HEAD_DIM && THREADS == 32 * ROW_WARPS * SHARING);
static_assert(SHARED_BYTES == QUERY_BYTES + EXCHANGE_BYTES + STAGES * SLOT_BYTES + PLACES_BYTES && (STAGES == 1 || STAGES == 2));

using Sums = SumsOf<VALUE_PAIRS>;
using Total = KeptTotal<VALUE_PAIRS>;

// The tiles of an item's keys, in order; with two stages the next one is copied while one is read.
class Tiles {
 public:
  DEVICE Tiles(const Source& source, unsigned char* stages)
      : source_(source), stages_(stages), places_(source, stages + STAGES * SLOT_BYTES),
        next_key_(source.from / TILE_KEYS * TILE_KEYS) {
    places_.look_up(next_key_);
    if (STAGES > 1) {
      places_.publish();
      __syncthreads();
      ask();
    }
  }
  // The next tile. It invalidates the one before.
  DEVICE const unsigned char* next() {
    places_.publish();
    if (STAGES > 1) copy_wait<0>();
    __syncthreads();  // all threads are done with the tile before; with two stages this one has arrived
    ask();
    if (STAGES == 1) {
      copy_wait<0>();
      __syncthreads();
    }
    return stages_ + filled_ * SLOT_BYTES;  // with two stages the one that is filled next
  }

 private:
  DEVICE void ask() {
    if (next_key_ < source_.to) copy_half(stages_ + filled_ * SLOT_BYTES, source_.keys, places_.current());
    places_.look_up(next_key_ += TILE_KEYS);
    copy_commit();
    if (STAGES > 1) filled_ = !filled_;
  }
  const Source& source_;
  unsigned char* const stages_;
  Places places_;
  int next_key_, filled_ = 0;
};

// Masks the keys that a row does not attend to.
DEVICE void mask(Scores& scores, int first_key, const Item& item) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const Sight sight = item.sight(item.last_seen(item.row_of(i)));
#pragma unroll
    for (int t = 0; t < 2 * MINE; t++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (!sight.sees(first_key + item.share * WARP_KEYS + t * 8 + item.lane % 4 * 2 + e)) scores[t][2 * i + e] = MASKED;
  }
}

DEVICE void store(const Sums& sums, const Total& total, const Item& item) {
  const PagedAttentionParams& p = item.p;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = item.row_of(i), in_request = item.work.first_row + row;
    if (row >= item.work.rows) continue;
    const float scale = normaliser(total.top[i], total.total[i], nullptr, p.to_log2, p.value_scale);
    SCALAR* out = static_cast<SCALAR*>(p.out) + (item.first_token + in_request / GROUP) * p.out_stride;
    out += in_request % GROUP * VALUE_DIM;
    const int64_t slot = item.work.slot + row;
    if (item.work.slot >= 0 && item.share == 0 && item.lane % 4 == 0)
      p.part_tops[slot] = make_float2(total.top[i], total.total[i]);
#pragma unroll
    for (int d = 0; d < Total::SUMS; d++) {
      const int pair = item.share + d / 2 * SHARING, dim = pair * 16 + d % 2 * 8 + item.lane % 4 * 2;
      if (VALUE_PAIRS % SHARING && pair >= VALUE_PAIRS) break;
      const float x = sums[d][2 * i], y = sums[d][2 * i + 1];
      if (item.work.slot >= 0) *reinterpret_cast<float2*>(p.part_sums + slot * VALUE_DIM + dim) = make_float2(x, y);
      else *reinterpret_cast<uint32_t*>(out + dim) = pack2<SCALAR>(finished(x, scale), finished(y, scale));
    }
  }
}

DEVICE void attend(const Item& item, unsigned char* shared) {
  const float to_log2 = item.p.to_log2;
  const Source source = item.source();
  const bool has_rows = item.row_warp * 16 < item.work.rows;  // warps without rows only copy and wait
  Exchange exchange(shared + QUERY_BYTES, item.row_warp, item.share, item.lane);
  copy_query(shared, item);  // with the first tile
  const SharedQuery query(query_of(shared, item));
  Tiles tiles(source, shared + QUERY_BYTES + EXCHANGE_BYTES);
  Sums sums = {};
  Softmax<MINE> softmax;
  Total total(shared);
  const int first_tile = source.from / TILE_KEYS * TILE_KEYS;
  for (int key = first_tile; key < source.to; key += TILE_KEYS) {
    const unsigned char* keys = tiles.next();
    if (key % SPLIT_KEYS == 0 && key > first_tile) total.close_split(sums, softmax, exchange, to_log2);
    Scores scores = {};
    if (has_rows) score(scores, query, keys, item), mask(scores, key, item);
    Weights weights;
    float keep[2];
    weigh(weights, scores, keep, softmax, exchange, to_log2);
    if (SHARING > 1) __syncthreads();  // the weights of all warps are visible
    if (has_rows) add_values<VALUE_PAIRS>(sums, keep, weights, exchange, keys, item);
  }
  store(total.finish(sums, softmax, exchange, to_log2), total, item);
}

KERNEL(latent_attention, PagedAttentionParams) {
  DYNAMIC_SHARED(shared);
  const int num_work = *p.num_work;
  for (int i = blockIdx.x; i < num_work; i += gridDim.x) {
    attend(Item(p, p.work[i]), shared);
    __syncthreads();  // the next item overwrites memory that other warps may still read
  }
}

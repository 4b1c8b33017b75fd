// attention: each token attends to the keys of its request in the paged cache; one routine for decode and chunked prefill.
//
// Algorithm  online softmax over tiles of 128 keys, counted from key 0. Ranges of 1024 keys are summed separately, and
//            each sum is joined to that of the ranges before it. Few rows (decode) are multiplied straight from the
//            cache; many rows (prefill) share the repacking of each tile into panels and use the microkernel of tile.h.
//            Both add in the same order (attention.h, attention/products.h), whatever the threads and chunks, so the
//            bits of a token's result depend only on its query and its request's keys and values. One exception: an
//            infinite value, which only a request that fails or a wrong draft can have, also reaches earlier tokens of
//            the same tile, as 0 times infinity.
// Shapes     query, out     [tokens, heads, head_dim]                        bfloat16, float16 or float
//            keys, values   [num_blocks, kv_heads, block_size, cached_dim]   the same; or int8 beside 16 bits
//            head_dim of up to 1024, which zeros follow in the cache up to a multiple of 16; block_size a multiple of 16,
//            or 1 for latents (cache/gather.h);
//            any number of heads per KV head. latent_attention: values are the first value_dim elements of the one KV
//            head's keys, so that both products read the same rows
// Tile       decode: up to 8 rows x 2 or 4 vectors of keys, then of columns
//            prefill: MOST_ROWS rows x 64 keys, then MOST_ROWS rows x 64 columns, of up to 256 rows per KV head
// Threads    divide the pairs (tokens of a request, KV head) round robin; if these are too few, ranges of keys as well
// Floor      decode: bytes of keys and values / read bandwidth; prefill: 4 * head_dim flop per query and key
// Achieved   one core of Zen 4, 2 queries per KV head: decode 0.74 of the read bandwidth from 4,096 keys on, 0.78 with
//            32 rows, which is what one core reaches when it reads pieces of 4 KB; prefill 0.75 of peak over 2,048 keys,
//            0.64 over 512, where half tiles compute an eighth too much. Latents of 576 elements: decode with 16 and 128
//            heads 0.75 and 0.81 of peak, prefill 0.83 over 2,048 keys
#include "attention/kernel.h"

#include "latent/latent.h"

namespace {

using KvDotBf16 = std::conditional_t<WIDENS_BF16, KvWideBf16, KvBf16>;
using KvDotInt8 = std::conditional_t<WIDENS_BF16, KvWideInt8, KvInt8>;

template <class Kv, bool TILED = false> void attend(Pool* pool, const AttentionParams* p) {
  Attention<Kv, TILED>(pool, *p, p->head_dim, 0).run();
}
template <class Kv, bool TILED = false> void attend_latent(Pool* pool, const LatentAttentionParams* p) {
  Attention<Kv, TILED>(pool, p->attention, p->value_dim, p->row_dim).run();
}

}  // namespace

void attention_bf16(Pool* pool, const AttentionParams* p) { attend<KvDotBf16>(pool, p); }
void attention_bf16_tile(Pool* pool, const AttentionParams* p) { attend<KvBf16, true>(pool, p); }
void attention_int8_tile(Pool* pool, const AttentionParams* p) { attend<KvInt8, true>(pool, p); }
void attention_int8(Pool* pool, const AttentionParams* p) { attend<KvDotInt8>(pool, p); }
void attention_fp16(Pool* pool, const AttentionParams* p) { attend<KvFp16>(pool, p); }
void attention_int8_fp16(Pool* pool, const AttentionParams* p) { attend<KvInt8Fp16>(pool, p); }
void attention_fp32(Pool* pool, const AttentionParams* p) { attend<KvFp32>(pool, p); }

void latent_attention_bf16(Pool* pool, const LatentAttentionParams* p) { attend_latent<KvDotBf16>(pool, p); }
void latent_attention_bf16_tile(Pool* pool, const LatentAttentionParams* p) { attend_latent<KvBf16, true>(pool, p); }
void latent_attention_fp16(Pool* pool, const LatentAttentionParams* p) { attend_latent<KvFp16>(pool, p); }
void latent_attention_fp32(Pool* pool, const LatentAttentionParams* p) { attend_latent<KvFp32>(pool, p); }

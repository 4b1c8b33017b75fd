// cache_index_keys: rotates the index keys of tokens and writes them to the cache.
//
// Algorithm  results are computed in float and rounded once, when they are stored
// Shapes     latent/indexer.h
// Tile       one token by one thread; the caller does tiny work alone
// Floor      each array passes through level 2 once
#include "latent/indexer.h"

#include "attention/heads.h"
#include "elementwise/rows.h"
#include "latent/rotation.h"

namespace {

template <class Element> void cache_key(const CacheIndexKeysParams& p, int token) {
  const Element* x = (const Element*)p.keys + token * p.stride;
  Element* row = (Element*)p.rows + p.slots[token] * p.row_dim;
  rotate_pairs(row, x, p.angles + p.positions[token] * p.rope_dim, p.rope_dim);
  std::copy(x + p.rope_dim, x + p.index_dim, row + p.rope_dim);
  std::fill(row + p.index_dim, row + cached_dim(p.index_dim), Element{});
}

}  // namespace

void cache_index_keys(Pool* pool, const CacheIndexKeysParams* p) {
  with_element(p->dtype, [&](auto x) {
    for_rows(pool, p->tokens, p->index_dim, [&](int at) { cache_key<decltype(x)>(*p, at); });
  });
}

// The scores of the indexer: of up to four tokens of a request, by halves of a tile (attention/attention.h).
#pragma once
#include "attention/products.h"
#include "latent/choice.h"

constexpr int UNIT_TOKENS = 4;    // that share the packing of keys
constexpr int SPAN_KEYS = 512;    // of an item
// Scores that are written for so many keys: whole halves.
constexpr int64_t scores_of(int keys) { return (keys + HALF_KEYS - 1) / HALF_KEYS * (int64_t)HALF_KEYS; }

// An integer of the same order. -0 and 0 are equal, NaN is less than all numbers.
inline I32 ordered(F32 x) {
  const I32 bits = (I32)x, value = x == splat(0.0f) ? splat(0) : bits ^ ((bits >> 31) & 0x7fffffff);
  return x == x ? value : splat(INT32_MIN);
}

template <class Kv> class Scores {
 public:
  Scores(const SelectKeysParams& p, const ScoredToken* tokens, int count)
      : p_(p), first_(tokens[0]), count_(count), size_(p.index_dim, p.index_dim) {
    size_.row_bytes = p.row_dim * sizeof(Element);  // of a cached row
    const int rows = (count * p.heads + ROWS - 1) / ROWS * ROWS;
    thread_local Arena arena;
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
      Carver carve(pass ? arena.reserve(bytes) : nullptr);
      panel_ = carve.take<char>(size_.words * PANEL_STEP<Kv>);
      query_ = carve.take<char>(rows * query_bytes());
      weights_ = carve.take<float>(count * p.heads);
      products_ = carve.take<float>(ROWS * TILE_KEYS);
      bytes = carve.used();
    }
    load(rows);
  }

  // Writes the scores of the keys [first, last) of the request to each token's `rows`; `first` is a multiple of a half. Up to the
  // half's end, what follows the request's last key may be anything.
  void write(int first, int last, int32_t* const* rows) const {
    for (int key = first; key < last; key += HALF_KEYS) {
      const char* streams[STREAMS];
      for (int s = 0; s < STREAMS; s++) streams[s] = stream(key + s * STREAM_KEYS, last);
      pack_keys<Kv>(panel_, size_, streams, nullptr);
      write_half(key, rows);
    }
  }

 private:
  using Element = typename Kv::Element;
  static constexpr int ROWS = MOST_ROWS<typename Kv::F>;

  size_t query_bytes() const { return size_.row_dim * sizeof(typename Kv::Row); }

  // Queries and weights of all heads; rows of zeros fill the last block.
  void load(int rows) const {
    for (int row = 0; row < count_ * p_.heads; row++) {
      const int64_t token = first_.token + row / p_.heads, head = row % p_.heads;
      load_row<Kv>(query_ + row * query_bytes(), (const Element*)p_.query + token * p_.query_stride + head * p_.index_dim, size_);
      weights_[row] = p_.weights[token * p_.weights_stride + head] * p_.weights_scale;
    }
    const size_t used = count_ * p_.heads * query_bytes();
    std::memset(query_ + used, 0, rows * query_bytes() - used);
  }

  const char* stream(int key, int last) const {
    if (key >= last) return ZEROS;
    return (const char*)p_.rows + slot_of(p_, first_.request, key) * (int64_t)size_.row_bytes;
  }

  void write_half(int key, int32_t* const* rows) const {
    alignas(64) float sums[UNIT_TOKENS][HALF_KEYS] = {};
    for (int first = 0; first < count_ * p_.heads; first += ROWS) {
      panel_scores<typename Kv::F, ROWS>(products_, query_ + first * query_bytes(), query_bytes(), panel_, size_.words / 4);
      for (int m = 0; m < ROWS && first + m < count_ * p_.heads; m++)
        add_head(sums[(first + m) / p_.heads], products_ + m * TILE_KEYS, weights_[first + m]);
    }
    for (int t = 0; t < count_; t++) {
      alignas(64) int32_t ranks[HALF_KEYS];
      for (int at = 0; at < HALF_KEYS; at += LANES) store_words(ranks + at, ordered(::load(sums[t] + at)));
      for (int at = 0; at < HALF_KEYS; at++) rows[t][key + key_at(at)] = ranks[at];
    }
  }

  void add_head(float* sums, const float* products, float weight) const {
    for (int at = 0; at < HALF_KEYS; at += LANES) {
      const F32 scaled = ::load(products + at) * splat(p_.scale);
      const F32 positive = scaled > splat(0.0f) ? scaled : splat(0.0f);
      store(sums + at, fma(positive, splat(weight), ::load(sums + at)));
    }
  }

  const SelectKeysParams& p_;
  const ScoredToken first_;
  const int count_;
  Sizes<Kv> size_;
  char *panel_, *query_;
  float *weights_, *products_;
};

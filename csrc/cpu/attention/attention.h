// Definitions shared by the parts of paged attention: the order of keys within a tile, the position of a tile's keys in
// the paged cache, and the scratch memory of a thread.
//
// A tile is 128 consecutive keys, counted from key 0 of the sequence. Each half of it is read as 8 streams of 8 keys,
// in parallel, because a core reads eight interleaved streams of memory faster than one after another (figures in
// attention.cpp). Every sum over the keys of a half therefore alternates between the streams:
//
//   position p = 16 i + 2 s + b   holds key   8 s + 2 i + b     stream s = 0..7, pair i = 0..3, b = 0, 1
//
// A stream's keys lie in one block, since every block size is a multiple of 16: the order is the same for all.
#pragma once
#include <array>

#include "arena.h"
#include "elements.h"
#include "attention/heads.h"
#include "tiles/tile.h"

constexpr int HALF_KEYS = PANEL;  // a panel of the scores' product
constexpr int TILE_KEYS = 2 * HALF_KEYS;
constexpr int STREAMS = 8;
constexpr int STREAM_KEYS = HALF_KEYS / STREAMS;
constexpr int PAIRS = STREAM_KEYS / 2;  // of a stream
constexpr int RANGE_TILES = 8;          // tiles whose keys are summed separately before the sum is added to the others

constexpr int key_at(int position) { return position % 16 / 2 * STREAM_KEYS + position / 16 * 2 + position % 2; }

alignas(64) constexpr auto KEY_AT = [] {
  std::array<int32_t, HALF_KEYS> keys{};
  for (int p = 0; p < HALF_KEYS; p++) keys[p] = key_at(p);
  return keys;
}();

// Replaces keys and values that must not be read: past the end, or before every window.
alignas(64) constexpr char ZEROS[STREAM_KEYS * MAX_HEAD_DIM * sizeof(float)] = {};

// Words of float16 as stored in the cache, and words of rows widened to float: see `piece` in products.h.
struct Fp16Words : Fp32 {
  using Weights = Halves;
  using Row = Halves;
  static Weights weights(I32 w) { return {(I32)from_fp16(even_halves(w)), (I32)from_fp16(odd_halves(w))}; }
  static Acc dot(Acc acc, Weights w, Row x) { return Fp32::dot(Fp32::dot(acc, w.odd, x.odd), w.even, x.even); }
};

// With vectors of sixteen lanes, blocks of float rows share panels that are widened when they are packed; see gemm/widened.h.
template <class F> using WidenedPanel = std::conditional_t<LANES == 16, Widened, F>;

// Types of a cache: its elements (Stored), what they are converted to before products (Element), and queries and weights
// (Row). Words are multiplied by F from panels, and by Direct straight from the cache.
struct KvBf16 {
  using Stored = Bfloat16;
  using Element = Bfloat16;
  using Row = Bfloat16;
  using Computed = KvBf16;
  using F = Bf16;
  using Direct = Bf16;
};
struct KvWideBf16 : KvBf16 {  // the same bits
  using Row = WideBfloat16;
  using Computed = KvWideBf16;
  using F = WidenedPanel<WideBf16>;
};
struct KvFp32 {
  using Stored = float;
  using Element = float;
  using Row = float;
  using Computed = KvFp32;
  using F = Fp32;
  using Direct = Fp32;
};
struct KvFp16 {  // weights stay float, so their rounding costs a sum over keys no precision
  using Stored = Float16;
  using Element = Float16;
  using Row = float;
  using Computed = KvFp16;
  using F = WidenedPanel<Fp16>;
  using Direct = Fp16Words;
};
struct KvInt8 : KvBf16 {  // codes, with a scale per key and per value, see attention/cache/int8.h
  using Stored = int8_t;
};
struct KvWideInt8 : KvWideBf16 {
  using Stored = int8_t;
};
struct KvInt8Fp16 : KvFp16 {
  using Stored = int8_t;
};
template <class Kv> constexpr bool IS_CODED = sizeof(typename Kv::Stored) < sizeof(typename Kv::Element);
template <class Kv> constexpr int PER_WORD = WORD_BYTES / (int)sizeof(typename Kv::Element);
template <class Kv> constexpr int ROW_WORD = PER_WORD<Kv> * (int)sizeof(typename Kv::Row);  // bytes of a word of a row
template <class Kv> constexpr bool IS_WIDENED = sizeof(typename Kv::Row) > sizeof(typename Kv::Element);
template <class Kv> constexpr size_t PANEL_STEP = WordLayout<typename Kv::F>::STEP;  // bytes of a word of a panel
template <class Kv> constexpr int HALF_WORDS = HALF_KEYS / PER_WORD<Kv>;  // of a row of weights over half a tile

// Lengths that follow from the head's size.
template <class Kv> struct Sizes {
  int head_dim;       // of a query and a key: the model's
  int row_dim;        // the cache's, padded; also that of products
  int words;          // of a padded query, key or value
  size_t row_bytes;   // of the same
  int value_dim;      // the first elements of a cached row of values that are mixed: an output
  int value_columns;  // the same, padded
  int columns;        // of an output row in scratch: whole panels
  Sizes(int dim, int of_values)
      : head_dim(dim), row_dim(cached_dim(dim)), words(row_dim / PER_WORD<Kv>),
        row_bytes(row_dim * sizeof(typename Kv::Element)), value_dim(of_values), value_columns(cached_dim(of_values)),
        columns((of_values + PANEL - 1) / PANEL * PANEL) {}
};

// Where the streams of a half begin; each consists of 8 consecutive rows.
struct Half {
  const char* keys[STREAMS];
  const char* values[STREAMS];
  int64_t rows[STREAMS];  // the first key's row of the cache; -1: no row attends to the stream, which reads as zeros
};
struct Tile {
  Half halves[2];
  // Line `i` of its keys and values, one stream after another: processors read memory faster so than from all streams in turn.
  const char* line(int i, size_t row_bytes) const {
    const int stream_lines = (int)(STREAM_KEYS * row_bytes / 64), stream = i / stream_lines;
    const Half& half = halves[stream / (2 * STREAMS)];
    const char* const* streams = stream / STREAMS % 2 ? half.values : half.keys;  // gcc 12's UBSan errs on (a ? b : c)[i]
    return streams[stream % STREAMS] + i % stream_lines * 64;
  }
};

// Allocates parts of an arena; with a null base it only counts bytes.
class Carver {
 public:
  explicit Carver(void* base) : base_((char*)base) {}
  template <class T> T* take(size_t count) {
    T* part = base_ ? (T*)(base_ + used_) : nullptr;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return part;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

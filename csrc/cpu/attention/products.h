// The two products of attention over half a tile, scores = Q K^T and sums = keep * sums + W V, each in two ways that
// give the same bits: straight from the cache, for few rows (decode), and from panels repacked for tile.h (prefill).
//
// Order of additions   a score has four chains: chain l adds words l, l + 4, l + 8, ... of the head, from 0, and the
//                      chains are joined as ((0 + 1) + 2) + 3. A sum adds the positions in order; with 16-bit elements
//                      a word holds two keys. Of a word with two elements the odd one is added first. With float16,
//                      queries and weights are floats, and weights are not rounded; with bfloat16, weights are rounded,
//                      and both are floats on processors that multiply floats.
//
// Straight from the cache, a vector consists of LANES / 4 pieces of four words, each of another key, and holds the four
// chains of those keys. In panels a vector is one word of LANES keys, and the chains are computed one after another.
#pragma once
#include <algorithm>

#include "attention/attention.h"

// Prefetches: `far` is the same part of the next tile, `near` what the next product over this half reads.
// A core drops a prefetch that finds no free buffer, so each line is prefetched twice. With AVX2 it is prefetched once, in the
// order of memory: Zen 3 reads a stream faster than lines of eight streams in turn.
constexpr bool BY_STREAM = LANES == 8;
struct Ahead {
  const char* const volatile* far;  // volatile: read when used. Kept in registers, they drive accumulators to the stack
  const char* const volatile* near;
  void line(int stream, size_t offset) const {
    prefetch<2>(far[stream] + offset);
    prefetch<2>(near[stream] + offset);
  }
  // Byte `place` of the far streams, one after another.
  const char* far_at(uint32_t place, uint32_t row_bytes) const {
    const uint32_t stream_bytes = STREAM_KEYS * row_bytes;
    return far[place / stream_bytes % STREAMS] + place % stream_bytes;
  }
};

inline F32 join_chains(const F32 (&chains)[4]) {
  I32 x[4];
  EACH(l, 4) x[l] = (I32)chains[l];
  transpose_fours(x);
  return (((F32)x[0] + (F32)x[1]) + (F32)x[2]) + (F32)x[3];
}

// The rows that are multiplied together straight from the cache, and the number of vectors of keys or columns: as many
// as leave registers for the words that are read.
constexpr bool SPLIT_WORDS = sizeof(Bf16::Weights) > sizeof(I32);
constexpr int DIRECT_BLOCK = REGISTERS == 16 ? 4 : SPLIT_WORDS ? 6 : 8;
template <bool SPLIT> constexpr int DIRECT_SUMS = REGISTERS == 16 ? 4 : !SPLIT ? 20 : LANES == 16 ? 12 : 16;
template <int ROWS, bool SPLIT = SPLIT_WORDS> constexpr int DIRECT_VECTORS = ROWS * 4 <= DIRECT_SUMS<SPLIT> ? 4 : 2;

// Four words of a row, to be multiplied by a piece of a key: unchanged, or four even elements as float, then four odd ones.
template <class Kv> constexpr size_t PIECE = 4 * ROW_WORD<Kv>;
template <class Kv> inline typename Kv::Direct::Row piece(const char* p) {
  if constexpr (IS_WIDENED<Kv>) return {repeat_four(p), repeat_four(p + PIECE<Kv> / 2)};
  else return Kv::Direct::row(repeat_four(p));
}

// A query as a row, for panels; and as pieces, which alternate with the pieces of the block's other `rows` - 1 rows.
template <class Kv> void load_row(char* to, const typename Kv::Element* query, const Sizes<Kv>& size) {
  using Row = typename Kv::Row;
  if constexpr (!IS_WIDENED<Kv>) std::memcpy(to, query, size.head_dim * sizeof(Row));
  else for (int i = 0; i < size.head_dim; i += LANES) store((float*)to + i, get(query + i, size.head_dim - i));
  std::memset(to + size.head_dim * sizeof(Row), 0, (size.row_dim - size.head_dim) * sizeof(Row));
}
template <class Kv> void load_pieces(char* to, const typename Kv::Element* query, int rows, const Sizes<Kv>& size) {
  alignas(64) char row[MAX_HEAD_DIM * sizeof(float)];
  load_row<Kv>(row, query, size);
  for (size_t at = 0; at < size.row_dim * sizeof(typename Kv::Row); at += PIECE<Kv>, to += rows * PIECE<Kv>) {
    if constexpr (IS_WIDENED<Kv>) EACH(i, 8) std::memcpy(to + (i % 2 * 4 + i / 2) * 4, row + at + i * 4, 4);
    else std::memcpy(to, row + at, PIECE<Kv>);
  }
}

// scores[ROWS][TILE_KEYS] of half a tile, by position. query: [row_bytes / 16][ROWS] pieces.
template <class Kv, int ROWS, bool AHEAD>
[[gnu::noipa]] void direct_scores(float* scores, const char* query, const Sizes<Kv>& size, const char* const* keys,
                                  Ahead ahead) {
  using F = typename Kv::Direct;
  constexpr int PIECES = LANES / 4, N = DIRECT_VECTORS<ROWS, (sizeof(typename F::Weights) > sizeof(I32))>;
  constexpr int PART_KEYS = LANES * N / 4;  // whose scores a pass computes
  const size_t row_bytes = size.row_bytes;
  for (int position = 0; position < HALF_KEYS; position += LANES) {  // piece k of vector v: position + 4 k + v
    const size_t first = position / 16 * 2 * row_bytes;
    F32 chains[ROWS][4];
#pragma GCC unroll 1
    for (int pass = 0; pass < 4 / N; pass++) {
      const char* at[N / 2][PIECES];  // of vectors v and v + 1: two keys of each of some streams
      const int stream = position % 16 / 2 + pass * N / 2;
      EACH(pair, N / 2) EACH(k, PIECES) at[pair][k] = keys[stream + 2 * k + pair] + first;
      F32 acc[ROWS][N] = {};
      const char* from = query;
      const char* far = AHEAD && BY_STREAM ? ahead.far_at((position + pass * PART_KEYS) * row_bytes, row_bytes) : nullptr;
      for (size_t at_byte = 0; at_byte < row_bytes; at_byte += 32, from += 2 * ROWS * PIECE<Kv>) {
        I32 words[N][2];
        EACH(v, N) eights(at[v / 2], v % 2 * row_bytes + at_byte, words[v]);
        EACH(v, N) EACH(j, 2) opaque(words[v][j]);  // otherwise g++ 12 keeps some sums on the stack
        if constexpr (AHEAD && BY_STREAM) {
          EACH(line, PART_KEYS / 2) prefetch<2>(far + at_byte * PART_KEYS + line * 64);
        } else if constexpr (AHEAD) {
          const size_t line = first + at_byte % 64 / 32 * row_bytes + at_byte / 64 * 64;
          EACH(pair, N / 2) EACH(k, PIECES) ahead.line(stream + 2 * k + pair, line);
        }
        EACH(j, 2) {
          const auto x = [&](int m) { return piece<Kv>(from + (j * ROWS + m) * PIECE<Kv>); };
          if constexpr (ROWS == 1) {
            const typename F::Row row = x(0);
            EACH(v, N) acc[0][v] = F::dot(acc[0][v], F::weights(words[v][j]), row);
          } else {
            typename F::Weights w[N];
            EACH(v, N) w[v] = F::weights(words[v][j]);
            EACH(m, ROWS) {
              const typename F::Row row = x(m);
              EACH(v, N) acc[m][v] = F::dot(acc[m][v], w[v], row);
            }
          }
        }
      }
      EACH(m, ROWS) EACH(v, N) chains[m][pass * N + v] = acc[m][v];
      if constexpr (N < 4) asm volatile("" : "+m"(chains));  // kept in memory: the next pass needs the registers
    }
    EACH(m, ROWS) store(scores + m * TILE_KEYS + position, join_chains(chains[m]));
  }
}

// The number of steps that add a pair of keys to a sum, and the key of each step: both keys in one step, or the odd key
// first if elements are widened.
template <class Kv> constexpr int STEPS = IS_WIDENED<Kv> ? 2 : 2 / PER_WORD<Kv>;
template <class Kv> constexpr int key_of(int step) { return IS_WIDENED<Kv> ? 1 - step : step; }

// Values in N vectors of columns: words of one key; alternating words of a pair of keys; or the words or widened elements
// of each step. TAIL: only `columns` columns exist, the rest is 0.
template <class Kv, bool TAIL> inline I32 value_words(const char* key, int n, int columns) {
  const char* p = key + n * sizeof(I32);
  if constexpr (TAIL) return load_words_n(p, std::clamp(columns / PER_WORD<Kv> - n * LANES, 0, LANES));
  else return load_words(p);
}
template <class Kv, int N, bool TAIL>
inline void interleaved_words(const char* values, size_t row_bytes, int columns, I32 (&w)[N]) {
  EACH(n, N / 2)
    interleave(value_words<Kv, TAIL>(values, n, columns), value_words<Kv, TAIL>(values + row_bytes, n, columns), w[2 * n], w[2 * n + 1]);
}
template <class Kv, int N, bool TAIL>
inline void pair_words(const char* values, size_t row_bytes, int columns, I32 (&w)[STEPS<Kv>][N]) {
  const auto widened = [&](int key, int n) {
    const auto* p = (const typename Kv::Element*)(values + key * row_bytes) + n * LANES;
    return !TAIL || n * LANES < columns ? (I32)get(p, LANES) : splat(0);  // heads are whole vectors
  };
  if constexpr (STEPS<Kv> == 1) interleaved_words<Kv, N, TAIL>(values, row_bytes, columns, w[0]);
  else if constexpr (IS_WIDENED<Kv>) EACH(step, 2) EACH(n, N) w[step][n] = widened(key_of<Kv>(step), n);
  else EACH(step, 2) EACH(n, N) w[step][n] = value_words<Kv, TAIL>(values + key_of<Kv>(step) * row_bytes, n, columns);
}

// sums[ROWS][one strip of columns], at `offset` bytes of a row of values. weights: [ROWS][TILE_KEYS], the half's by
// position.
template <class Kv, int ROWS, bool AHEAD, bool TAIL>
[[gnu::noipa]] void direct_values(float* sums, const float* keep, const char* weights, const Sizes<Kv>& size,
                                  const char* const* values, size_t offset, Ahead ahead) {
  using F = std::conditional_t<IS_WIDENED<Kv>, Fp32, typename Kv::F>;
  constexpr int N = DIRECT_VECTORS<ROWS>;
  constexpr size_t STRIP_BYTES = (size_t)N * LANES * sizeof(typename Kv::Element), WEIGHT_BYTES = sizeof(typename Kv::Row);
  const size_t row_bytes = size.row_bytes;
  const int columns = size.value_columns - (int)(offset / sizeof(typename Kv::Element));
  F32 acc[ROWS][N];
  EACH(m, ROWS) EACH(n, N) acc[m][n] = load(sums + (size_t)m * size.columns + n * LANES) * splat(keep[m]);
  for (int i = 0; i < PAIRS; i++) {
    const char* far = AHEAD && BY_STREAM ? ahead.far_at(offset * HALF_KEYS + i * STREAMS * 2 * STRIP_BYTES, row_bytes) : nullptr;
    for (int s = 0; s < STREAMS; s++) {
      const size_t at = 2 * i * row_bytes + offset;
      I32 w[STEPS<Kv>][N];
      pair_words<Kv, N, TAIL>(values[s] + at, row_bytes, columns, w);
      if constexpr (AHEAD && BY_STREAM)
        for (size_t line = 0; line < 2 * STRIP_BYTES; line += 64) prefetch<2>(far + s * 2 * STRIP_BYTES + line);
      else if constexpr (AHEAD)
        EACH(key, 2) for (size_t line = 0; line < STRIP_BYTES; line += 64) ahead.line(s, at + key * row_bytes + line);
      EACH(step, STEPS<Kv>) EACH(m, ROWS) {
        const char* weight = weights + ((size_t)m * TILE_KEYS + 2 * (i * STREAMS + s) + key_of<Kv>(step)) * WEIGHT_BYTES;
        const typename F::Row x = F::row(weight);
        EACH(n, N) acc[m][n] = F::dot(acc[m][n], F::weights(w[step][n]), x);
      }
    }
  }
  EACH(m, ROWS) EACH(n, N) store(sums + (size_t)m * size.columns + n * LANES, acc[m][n]);
}

// Stores LANES words in a step of a panel, from output `first` on.
template <class Kv> inline void store_in_panel(char* step, int first, I32 words) {
  if constexpr (std::is_same_v<typename Kv::F, Widened>) {
    const Halves halves = Kv::Direct::weights(words);
    store_words(step + first * WORD_BYTES, halves.odd), store_words(step + STEP_BYTES + first * WORD_BYTES, halves.even);
  } else if constexpr (std::is_same_v<typename Kv::F, Fp16>) {
    store_halves(step + WordLayout<Fp16>::offset(first / LANES, 0), odd_halves(words));
    store_halves(step + WordLayout<Fp16>::offset(first / LANES, 1), even_halves(words));
  } else {
    store_words(step + first * WORD_BYTES, words);
  }
}

// keys -> panel[words][HALF_KEYS], by position. The words of chain 0 come first, then those of chains 1, 2 and 3; IN_ORDER:
// words in the order of the head. The same keys of the streams `ahead`, if not null, are prefetched.
template <class Kv, bool IN_ORDER = false>
void pack_keys(char* panel, const Sizes<Kv>& size, const char* const* keys, const char* const* ahead) {
  const int chunks = size.words / 4;
  for (int position = 0; position < HALF_KEYS; position += LANES) {
    const size_t first = position / 16 * 2 * size.row_bytes;
    const char* at[2][LANES / 4];
    EACH(half, 2) EACH(k, LANES / 4) at[half][k] = keys[position % 16 / 2 + 2 * k + half] + first;
    for (int c = 0; c < chunks; c += 2) {
      if (ahead && c % 4 == 0)
        for (int s = 0; s < LANES / 2; s++)
          EACH(key, 2) prefetch<2>(ahead[position % 16 / 2 + s] + first + key * size.row_bytes + c * 16);
      I32 words[4][2];
      EACH(v, 4) eights(at[v / 2], v % 2 * size.row_bytes + c * 16, words[v]);
      EACH(j, 2) {
        I32 x[4] = {words[0][j], words[1][j], words[2][j], words[3][j]};
        transpose_fours(x);
        EACH(l, 4) {
          const int word = IN_ORDER ? 4 * (c + j) + l : l * chunks + c + j;
          store_in_panel<Kv>(panel + word * PANEL_STEP<Kv>, position, x[l]);
        }
      }
    }
  }
}

// Packs the values of a pair of keys into one panel's columns. Values of float16 keep their order within each key.
template <class Kv, bool TAIL> inline void pack_pair(char* to, const char* values, size_t row_bytes, int columns) {
  if constexpr (std::is_same_v<typename Kv::F, Fp16>) {
    constexpr int GROUP = WordLayout<Fp16>::GROUP, GROUP_BYTES = GROUP * 2;
    EACH(group, PANEL / GROUP) EACH(part, 2) {
      char* here = to + (2 * group + part) * GROUP_BYTES;
      if (TAIL && group * GROUP >= columns) std::memset(here, 0, GROUP_BYTES);  // heads are whole groups
      else std::memcpy(here, values + (1 - part) * row_bytes + group * GROUP_BYTES, GROUP_BYTES);
    }
  } else if constexpr (PER_WORD<Kv> == 2 && !std::is_same_v<typename Kv::F, Widened>) {
    I32 w[PANEL_VECTORS];
    interleaved_words<Kv, PANEL_VECTORS, TAIL>(values, row_bytes, columns, w);
    EACH(n, PANEL_VECTORS) store_words(to + n * sizeof(I32), w[n]);
  } else {
    I32 w[STEPS<Kv>][PANEL_VECTORS];
    pair_words<Kv, PANEL_VECTORS, TAIL>(values, row_bytes, columns, w);
    EACH(step, STEPS<Kv>) EACH(n, PANEL_VECTORS) store_words(to + step * STEP_BYTES + n * sizeof(I32), w[step][n]);
  }
}

// values -> panels[columns / PANEL][2 HALF_WORDS][PANEL] words; this fills the words of one half, by position, with zeros
// past the head's last column. The same values of the streams `ahead`, if not null, are prefetched.
template <class Kv> void pack_values(char* panels, const Sizes<Kv>& size, const char* const* values, const char* const* ahead) {
  constexpr int PANEL_STEPS = 2 / PER_WORD<Kv>;  // for a pair of keys
  for (int panel = 0; panel < size.columns / PANEL; panel++) {
    const size_t offset = (size_t)panel * PANEL * sizeof(typename Kv::Element);
    const int columns = size.value_columns - panel * PANEL;
    for (int pair = 0; pair < HALF_KEYS / 2; pair++) {
      const size_t at = pair / STREAMS * 2 * size.row_bytes + offset;
      const char* from = values[pair % STREAMS] + at;
      if (ahead)
        EACH(key, 2) for (size_t line = 0; line < PANEL * sizeof(typename Kv::Element); line += 64)
          prefetch<2>(ahead[pair % STREAMS] + at + key * size.row_bytes + line);
      char* to = panels + ((size_t)panel * 2 * HALF_WORDS<Kv> + pair * PANEL_STEPS) * PANEL_STEP<Kv>;
      if (columns >= PANEL) pack_pair<Kv, false>(to, from, size.row_bytes, columns);
      else pack_pair<Kv, true>(to, from, size.row_bytes, columns);
    }
  }
}

// One chain of one strip of scores[ROWS][TILE_KEYS] of a half, from the chain's words in the panel of keys. A separate
// function, like those of tile.h: in a loop over chains, gcc 12 copies the accumulators to the stack after each.
template <class F, int ROWS, bool FIRST>
[[gnu::noipa]] void strip_chain(float* scores, const char* query, size_t row_bytes, const char* strip, int chunks) {
  constexpr int N = STRIP<ROWS>;
  F32 acc[ROWS][N] = {};
  tile<F, ROWS, 0, 4 * WordLayout<F>::X_BYTES>(acc, query, row_bytes, strip, chunks);
  EACH(m, ROWS) EACH(n, N) {
    float* at = scores + m * TILE_KEYS + n * LANES;
    store(at, FIRST ? acc[m][n] : load(at) + acc[m][n]);
  }
}

// scores[ROWS][TILE_KEYS] of half a tile, from its panel of keys. query: [ROWS][row_bytes].
template <class F, int ROWS>
void panel_scores(float* scores, const char* query, size_t row_bytes, const char* panel, int chunks) {
  constexpr int N = STRIP<ROWS>;
  for (int s = 0; s < STRIPS<ROWS>; s++) {
    for (int l = 0; l < 4; l++) {
      const char* strip = panel + (size_t)l * chunks * WordLayout<F>::STEP + s * N * sizeof(I32);
      const auto add = l == 0 ? strip_chain<F, ROWS, true> : strip_chain<F, ROWS, false>;
      add(scores + s * N * LANES, query + l * WordLayout<F>::X_BYTES, row_bytes, strip, chunks);
    }
  }
}

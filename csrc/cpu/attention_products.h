// The two products of attention over half a tile, scores = Q K^T and sums = keep * sums + W V, each in two ways that
// give the same bits: straight from the cache, for few rows (decode), and from panels repacked for tile.h (prefill).
//
// Order of additions   a score is four chains, chain l over words l, l + 4, l + 8, ... of the head, each from 0, joined
//                      as ((0 + 1) + 2) + 3; a sum goes on through the positions, two keys a word for bfloat16.
//
// Straight from the cache, a vector is LANES / 4 pieces of four words, each of another key, and carries the four chains
// of those keys. In panels a vector is one word of LANES keys, and the chains come one after another.
#pragma once
#include <algorithm>

#include "attention.h"

// Asks for what is read next: `far` the same part of the next tile, `near` what the next product over this half reads.
// A core drops a prefetch that finds no free buffer, so each line is asked for twice.
struct Ahead {
  const char* const volatile* far;  // volatile: read when used. Kept in registers, they drive accumulators to the stack
  const char* const volatile* near;
  void line(int stream, size_t offset) const {
    prefetch<2>(far[stream] + offset);
    prefetch<2>(near[stream] + offset);
  }
};

inline F32 join_chains(const F32 (&chains)[4]) {
  I32 x[4];
  EACH(l, 4) x[l] = (I32)chains[l];
  transpose_fours(x);
  return (((F32)x[0] + (F32)x[1]) + (F32)x[2]) + (F32)x[3];
}

// Rows that are multiplied together straight from the cache, and how many vectors of keys or columns at once: as many
// as leave registers for what is read.
constexpr int DIRECT_BLOCK = LANES == 16 ? 8 : 4;
template <int ROWS> constexpr int DIRECT_VECTORS = ROWS * 4 <= (LANES == 16 ? 20 : 4) ? 4 : 2;

// scores[ROWS][TILE_KEYS], of half a tile by position. query: [row_bytes / 16][ROWS] pieces of 16 bytes.
template <class Kv, int ROWS, bool AHEAD>
[[gnu::noipa]] void direct_scores(float* scores, const char* query, const Sizes<Kv>& size, const char* const* keys,
                                  Ahead ahead) {
  using F = typename Kv::F;
  constexpr int PIECES = LANES / 4, N = DIRECT_VECTORS<ROWS>;
  const size_t row_bytes = size.row_bytes;
  for (int position = 0; position < HALF_KEYS; position += LANES) {  // piece k of vector v: position + 4 k + v
    const size_t first = position / 16 * 2 * row_bytes;
    F32 chains[ROWS][4];
#pragma GCC unroll 1
    for (int pass = 0; pass < 4 / N; pass++) {  // a pass's chains wait in memory, not in registers
      const char* at[N / 2][PIECES];  // of vectors v and v + 1: two keys of each of some streams
      const int stream = position % 16 / 2 + pass * N / 2;
      EACH(pair, N / 2) EACH(k, PIECES) at[pair][k] = keys[stream + 2 * k + pair] + first;
      F32 acc[ROWS][N] = {};
      const char* piece = query;
      for (size_t at_byte = 0; at_byte < row_bytes; at_byte += 32, piece += 2 * ROWS * 16) {
        I32 words[N][2];
        EACH(v, N) eights(at[v / 2], v % 2 * row_bytes + at_byte, words[v]);
        if constexpr (AHEAD) {
          const size_t line = first + at_byte % 64 / 32 * row_bytes + at_byte / 64 * 64;
          EACH(pair, N / 2) EACH(k, PIECES) ahead.line(stream + 2 * k + pair, line);
        }
        EACH(j, 2) {
          typename F::Weights w[N];
          EACH(v, N) w[v] = F::weights(words[v][j]);
          EACH(m, ROWS) {
            const typename F::Row x = F::row(repeat_four(piece + (j * ROWS + m) * 16));
            EACH(v, N) acc[m][v] = F::dot(acc[m][v], w[v], x);
          }
        }
      }
      EACH(m, ROWS) EACH(v, N) chains[m][pass * N + v] = acc[m][v];
    }
    EACH(m, ROWS) store(scores + m * TILE_KEYS + position, join_chains(chains[m]));
  }
}

// The words of one pair of keys' values in N vectors of columns: 1 word a column for bfloat16, 2 for float. TAIL: only
// `words` words of a row are there, the rest is 0.
template <class Kv, int N, bool TAIL>
inline void pair_words(const char* values, size_t row_bytes, int words, I32 (&w)[2 / PER_WORD<Kv>][N]) {
  const auto part = [&](int key, int n) {
    const char* p = values + key * row_bytes + n * sizeof(I32);
    if constexpr (TAIL) return load_words_n(p, std::clamp(words - n * LANES, 0, LANES));
    else return load_words(p);
  };
  if constexpr (PER_WORD<Kv> == 2) {
    EACH(n, N / 2) interleave(part(0, n), part(1, n), w[0][2 * n], w[0][2 * n + 1]);
  } else {
    EACH(key, 2) EACH(n, N) w[key][n] = part(key, n);
  }
}

// sums[ROWS][one strip of columns], at `offset` bytes of a row of values. weights: [ROWS][2 HALF_WORDS]
// words, the half's by position.
template <class Kv, int ROWS, bool AHEAD, bool TAIL>
[[gnu::noipa]] void direct_values(float* sums, const float* keep, const char* weights, const Sizes<Kv>& size,
                                  const char* const* values, size_t offset, Ahead ahead) {
  using F = typename Kv::F;
  constexpr int N = DIRECT_VECTORS<ROWS>, STEPS = 2 / PER_WORD<Kv>;
  constexpr size_t STRIP_BYTES = (size_t)N * LANES * sizeof(typename Kv::Element);
  const size_t row_bytes = size.row_bytes;
  const int words = size.words - (int)(offset / WORD_BYTES);
  F32 acc[ROWS][N];
  EACH(m, ROWS) EACH(n, N) acc[m][n] = load(sums + (size_t)m * size.columns + n * LANES) * splat(keep[m]);
  for (int i = 0; i < PAIRS; i++) {
    for (int s = 0; s < STREAMS; s++) {
      const size_t at = 2 * i * row_bytes + offset;
      I32 w[STEPS][N];
      pair_words<Kv, N, TAIL>(values[s] + at, row_bytes, words, w);
      if constexpr (AHEAD)
        EACH(key, 2) for (size_t line = 0; line < STRIP_BYTES; line += 64) ahead.line(s, at + key * row_bytes + line);
      EACH(step, STEPS) EACH(m, ROWS) {
        const char* weight = weights + ((size_t)m * 2 * HALF_WORDS<Kv> + (i * STREAMS + s) * STEPS + step) * WORD_BYTES;
        const typename F::Row x = F::row(weight);
        EACH(n, N) acc[m][n] = F::dot(acc[m][n], F::weights(w[step][n]), x);
      }
    }
  }
  EACH(m, ROWS) EACH(n, N) store(sums + (size_t)m * size.columns + n * LANES, acc[m][n]);
}

// keys -> panel[words][HALF_KEYS] words by position; the words of chain 0 first, then those of chain 1, 2, 3.
template <class Kv> void pack_keys(char* panel, const Sizes<Kv>& size, const char* const* keys) {
  const int chunks = size.words / 4;
  for (int position = 0; position < HALF_KEYS; position += LANES) {
    const size_t first = position / 16 * 2 * size.row_bytes;
    const char* at[2][LANES / 4];
    EACH(half, 2) EACH(k, LANES / 4) at[half][k] = keys[position % 16 / 2 + 2 * k + half] + first;
    for (int c = 0; c < chunks; c += 2) {
      I32 words[4][2];
      EACH(v, 4) eights(at[v / 2], v % 2 * size.row_bytes + c * 16, words[v]);
      EACH(j, 2) {
        I32 x[4] = {words[0][j], words[1][j], words[2][j], words[3][j]};
        transpose_fours(x);
        EACH(l, 4) store_words(panel + (l * chunks + c + j) * STEP_BYTES + position * WORD_BYTES, x[l]);
      }
    }
  }
}

// values -> panels[columns / PANEL][2 HALF_WORDS][PANEL] words, of which the half's by position; zeros past the head's
// last column.
template <class Kv> void pack_values(char* panels, const Sizes<Kv>& size, const char* const* values) {
  constexpr int STEPS = 2 / PER_WORD<Kv>;
  for (int panel = 0; panel < size.columns / PANEL; panel++) {
    const size_t offset = (size_t)panel * PANEL * sizeof(typename Kv::Element);
    const int words = size.words - (int)(offset / WORD_BYTES);
    for (int pair = 0; pair < HALF_KEYS / 2; pair++) {
      const char* from = values[pair % STREAMS] + pair / STREAMS * 2 * size.row_bytes + offset;
      char* to = panels + ((size_t)panel * 2 * HALF_WORDS<Kv> + pair * STEPS) * STEP_BYTES;
      I32 w[STEPS][PANEL_VECTORS];
      if (words * PER_WORD<Kv> >= PANEL) pair_words<Kv, PANEL_VECTORS, false>(from, size.row_bytes, words, w);
      else pair_words<Kv, PANEL_VECTORS, true>(from, size.row_bytes, words, w);
      EACH(step, STEPS) EACH(n, PANEL_VECTORS) store_words(to + step * STEP_BYTES + n * sizeof(I32), w[step][n]);
    }
  }
}

// One chain of one strip of scores[ROWS][TILE_KEYS] of a half, from the chain's words of its panel of keys. A function
// of its own, like those of tile.h: in a loop over chains, gcc 12 copies the accumulators to the stack after each.
template <class F, int ROWS, bool FIRST>
[[gnu::noipa]] void strip_chain(float* scores, const char* query, size_t row_bytes, const char* strip, int chunks) {
  constexpr int N = STRIP<ROWS>;
  F32 acc[ROWS][N] = {};
  tile<F, ROWS, 0, 4 * WORD_BYTES>(acc, query, row_bytes, strip, chunks);
  EACH(m, ROWS) EACH(n, N) {
    float* at = scores + m * TILE_KEYS + n * LANES;
    store(at, FIRST ? acc[m][n] : load(at) + acc[m][n]);
  }
}

// scores[ROWS][TILE_KEYS] of a half, from its panel of keys. query: [ROWS][row_bytes].
template <class F, int ROWS>
void panel_scores(float* scores, const char* query, size_t row_bytes, const char* panel, int chunks) {
  constexpr int N = STRIP<ROWS>;
  for (int s = 0; s < STRIPS<ROWS>; s++) {
    for (int l = 0; l < 4; l++) {
      const char* strip = panel + (size_t)l * chunks * STEP_BYTES + s * N * sizeof(I32);
      const auto add = l == 0 ? strip_chain<F, ROWS, true> : strip_chain<F, ROWS, false>;
      add(scores + s * N * LANES, query + l * WORD_BYTES, row_bytes, strip, chunks);
    }
  }
}

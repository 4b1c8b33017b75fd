// States in columns, see scans.h: their vectors, and a segment's inputs as floats.
#pragma once
#include "arena.h"
#include "recurrent/scans.h"
#include "recurrent/state_rows.h"

constexpr int SEGMENT = 32;  // tokens whose inputs are converted at once, to stay in level 1 and 2
constexpr int EIGHT = 8;     // states of an output that stay in registers over the tokens of a segment

// The number of elements with those that pad the last column.
inline int in_columns(int size) { return (size + LANES_OF_COLUMN - 1) / LANES_OF_COLUMN * LANES_OF_COLUMN; }

// Where vector j of a head lies in each of the `depth` rows of its columns; rows are LANES_OF_COLUMN elements apart.
inline int64_t vector_place(int j, int depth) {
  const int64_t element = (int64_t)j * LANES;
  return element / LANES_OF_COLUMN * LANES_OF_COLUMN * depth + element % LANES_OF_COLUMN;
}

// Calls advance(from, to, token, count) as each_block does, with at most SEGMENT tokens at a time, for a part of the state:
// `size` elements from `offset` on. The states of drafts go to memory of this thread.
template <class Advance> void each_segment(const StateRows& s, int row, int64_t offset, int64_t size, Advance advance) {
  each_block(s, row, [&](const char* from, char* to, int token, int count) {
    thread_local Arena arena;
    const float* source = from ? (const float*)from + offset : nullptr;
    float* target = to ? (float*)to + offset : (float*)arena.reserve(sizeof(float) * size);
    for (int at = 0; at < count; at += SEGMENT, source = target)
      advance(source, target, token + at, std::min(SEGMENT, count - at));
  });
}

// Scans all heads of all rows, each with a Head(p, number) of its own, whose state has `size` elements.
template <class Head, class Params> void scan_heads(Pool* pool, const Params& p, int64_t size) {
  for_state_parts(pool, p.rows, p.heads, size, [&](int row, int number) {
    Head head(p, number);
    each_segment(p.rows, row, number * size, size, [&](const float* from, float* to, int token, int count) {
      head.advance(from, to, token, count);
    });
  });
}

// `size` elements as floats, zero-padded to whole columns.
template <class Element> void widen(const Element* from, float* to, int size) {
  each_vector(size, [&](int at, int n) { store(to + at, get(from + at, n)); });
  for (int at = (size + LANES - 1) / LANES * LANES; at < in_columns(size); at++) to[at] = 0.0f;
}

// One element of each of `count` tokens, as floats with room for whole vectors.
template <class Element> void gather_tokens(const Element* from, int64_t stride, int count, float* to) {
  for (int t = 0; t < count; t++) to[t] = get(from + t * stride, 1)[0];
  for (int t = count; t < in_columns(count); t++) to[t] = 0.0f;
}

// Prefetches `size` elements of each token of a segment into level 2: the processor does not follow rows that are pages apart.
template <class Element> void prefetch_segment(const Element* from, int64_t stride, int size) {
  for (int t = 0; t < SEGMENT; t++)
    for (int at = 0; at < size; at += 64 / sizeof(Element)) prefetch<2>(from + t * stride + at);
}

// `size` elements of token t as floats, a multiple of 8, in eights that lie `count` tokens apart: [size / 8, count, 8].
template <class Element> void in_eights(const Element* from, int size, float* to, int t, int count) {
  constexpr unsigned PIECE = std::min(LANES, EIGHT);
  alignas(64) float wide[LANES];
  each_vector(size, [&](int at, int n) {
    store(wide, get(from + at, n));
    for (unsigned i = 0; i < (unsigned)n; i += PIECE) {
      const unsigned eight = (at + i) / EIGHT, offset = (at + i) % EIGHT;
      std::memcpy(to + ((int64_t)eight * count + t) * EIGHT + offset, wide + i, PIECE * sizeof(float));
    }
  });
}

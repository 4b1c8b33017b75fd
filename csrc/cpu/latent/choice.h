// Chooses the keys of a token by their scores, which are integers.
#pragma once
#include <algorithm>
#include <vector>

#include "latent/indexer.h"

// A token of the step that has more positions than are chosen.
struct ScoredToken {
  int request;
  int token;     // of the step
  int position;  // its own
  int group;     // the request of attention that it becomes
};

inline int32_t slot_of(const SelectKeysParams& p, int request, int position) {
  const int32_t block = p.block_tables[(int64_t)request * p.table_stride + position / p.block_size];
  return block * p.block_size + position % p.block_size;
}

// The top_k-th highest of `count` scores, and how many of the chosen are equal to it.
struct Bound {
  uint32_t score;
  int equal;
};
inline uint32_t in_order(int32_t score) { return (uint32_t)score ^ 0x80000000u; }

// From the highest bits to the lowest: the bits of the bound at `shift` are those at which the count of higher ones reaches top_k.
inline Bound bound_of(const int32_t* scores, int count, int top_k) {
  constexpr int BITS = 11, BINS = 1 << BITS;
  Bound found{0, top_k};
  uint32_t known = 0;  // the bits of found.score
  for (int shift = 32 - BITS; shift > -BITS; shift -= BITS) {
    const int down = std::max(shift, 0), bits = shift < 0 ? BITS + shift : BITS;
    const uint32_t mask = (1u << bits) - 1;
    int histogram[BINS] = {};
    for (int i = 0; i < count; i++) {
      const uint32_t score = in_order(scores[i]);
      if ((score & known) == found.score) histogram[score >> down & mask]++;
    }
    uint32_t bin = mask;
    for (; found.equal > histogram[bin]; bin--) found.equal -= histogram[bin];
    found.score |= bin << down;
    known |= mask << down;
  }
  return found;
}

inline void choose(const SelectKeysParams& p, const ScoredToken& token, const int32_t* scores) {
  Bound bound = bound_of(scores, token.position + 1, p.top_k);
  int32_t* to = p.tables + (int64_t)token.group * p.top_k;
  for (int position = 0; position <= token.position; position++) {
    const uint32_t score = in_order(scores[position]);
    if (score < bound.score || (score == bound.score && bound.equal-- <= 0)) continue;
    *to++ = slot_of(p, token.request, position);
  }
}

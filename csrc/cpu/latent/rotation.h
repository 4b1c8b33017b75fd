// The rotation of a part of a head, for rotate.cpp and indexer.cpp.
#pragma once
#include "elementwise/rows.h"

// Elements i and i + size / 2 are a pair.
template <class Element> void rotate_pairs(Element* out, const Element* x, const float* angles, int size) {
  const int half = size / 2;
  each_vector(half, [&](int at, int n) {
    const F32 low = get(x + at, n), high = get(x + half + at, n);
    const F32 cosine = get(angles + at, n), sine = get(angles + half + at, n);
    put(out + at, low * cosine - high * sine, n);
    put(out + half + at, high * cosine + low * sine, n);
  });
}

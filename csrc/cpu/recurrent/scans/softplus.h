// softplus of vectors.
#pragma once
#include "elementwise/sigmoid.h"

// log(1 + u) for u in [0, 1]: twice the area hyperbolic tangent of u / (2 + u), which is at most 1/3, by its series. The error
// is below 2 ulp.
inline F32 log1p(F32 u) {
  const F32 z = u / (2.0f + u), square = z * z;
  F32 series = splat(2.0f / 17);
  for (float c : {2.0f / 15, 2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f})
    series = fma(series, square, splat(c));
  return z * series;
}

// log(1 + e^x), without overflow.
inline F32 softplus(F32 x) { return max(splat(0.0f), x) + log1p(exp(-abs(x))); }

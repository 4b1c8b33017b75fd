// The functions of gates and of decays, in the order of csrc/cpu (recurrent/scans/softplus.h).
#pragma once
#include "exponential.cuh"

// log(1 + u) for u in [0, 1]: twice the area hyperbolic tangent of u / (2 + u), by its series. The error is below 2 ulp.
DEVICE float log_of_one_plus(float u) {
  const float z = u / (2.f + u), square = z * z;
  float series = 2.f / 17;
  series = fmaf(series, square, 2.f / 15);
  series = fmaf(series, square, 2.f / 13);
  series = fmaf(series, square, 2.f / 11);
  series = fmaf(series, square, 2.f / 9);
  series = fmaf(series, square, 2.f / 7);
  series = fmaf(series, square, 2.f / 5);
  series = fmaf(series, square, 2.f / 3);
  series = fmaf(series, square, 2.f);
  return z * series;
}

// log(1 + e^x), without overflow; a NaN stays a NaN.
DEVICE float softplus(float x) { return (x < 0.f ? 0.f : x) + log_of_one_plus(exponential(-fabsf(x))); }
DEVICE float silu(float x) { return x / (1.f + exponential(-x)); }

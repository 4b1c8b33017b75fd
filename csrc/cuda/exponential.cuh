// The exponential of csrc/cpu (isa/isa.h): plain IEEE operations in its order, so results have its bits on every device, but
// where those flush denormal numbers.
#pragma once
#include "device.cuh"

DEVICE float power_of_two(float x) {  // -126 <= x <= 127
  const float whole = rintf(x), part = x - whole;
  float power = 1.534580803e-4f;
  power = fmaf(power, part, 1.339993090e-3f);
  power = fmaf(power, part, 9.618489072e-3f);
  power = fmaf(power, part, 5.550328642e-2f);
  power = fmaf(power, part, 2.402264625e-1f);
  power = fmaf(power, part, 6.931471825e-1f);
  power = fmaf(power, part, 1.f);
  return __uint_as_float(__float_as_uint(power) + (uint32_t(int(whole)) << 23));
}
DEVICE float exponential(float x) {  // below 2 ulp from -87 to 88, beyond that it saturates
  x = fminf(fmaxf(x, -87.33f), 88.37f);
  const float whole = rintf(x * LOG2_E);
  const float part = fmaf(whole, 2.12194440e-4f, fmaf(whole, -0.693359375f, x));  // ln 2 in two parts
  return __uint_as_float(__float_as_uint(power_of_two(part * LOG2_E)) + (uint32_t(int(whole)) << 23));
}
DEVICE float sigmoid(float x) { return 1.f / (1.f + exponential(-x)); }

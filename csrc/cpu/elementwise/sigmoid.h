// The logistic function of vectors, which gates and activations share.
#pragma once
#include "isa/isa.h"

inline F32 sigmoid(F32 x) { return 1.0f / (1.0f + exp(-x)); }

// x * sigmoid(gate) in one division, which saves a rounding.
inline F32 times_sigmoid(F32 x, F32 gate) { return x / (1.0f + exp(-gate)); }

inline F32 silu(F32 x) { return times_sigmoid(x, x); }

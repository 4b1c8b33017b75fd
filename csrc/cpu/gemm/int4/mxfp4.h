// Products with weights in MXFP4 (OCP Microscaling Formats 1.0): those of int4.cpp and int4_tile.cpp with other values.
//
// A code is a 4-bit float, e2m1: a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. Times 2 these are integers, exact in bfloat16,
// and the scales of groups are half of the published powers of two. Order of sums: that of int4, group after group.
#pragma once
#include "api.h"
#include "isa/isa.h"

// As in GemmInt4Params, without zero points; rows are bfloat16.
API void gemm_mxfp4(Pool*, const GemmInt4Params*);
API void gemm_mxfp4_tile(Pool*, const GemmInt4Params*);
API void expert_gemm_mxfp4(Pool*, const ExpertGemmInt4Params*);
API void expert_gemm_mxfp4_tile(Pool*, const ExpertGemmInt4Params*);

constexpr float TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Codes of e2m1, times 2, as words of bfloat16: in the form of Int4Codes.
#if defined(__AVX2__) && !defined(__AVX512F__)
struct E2m1Codes : CodeBytes {
  E2m1Codes() : CodeBytes([](int code) { return TWICE_E2M1[code]; }) {}
};
#else
struct E2m1Codes {
  static I32 value(I32 code) {
    const I32 low = code & 7, sign = splat(0) - (code >> 3);
    const I32 twice = low - (low > 4) - (low > 5) - 3 * (low > 6);  // a comparison is -1: 0 to 4, then 6, 8 and 12
    return (I32)to_float((twice ^ sign) - sign);
  }
  Halves word(I32 packed, int j) const { return {value((packed >> (4 * j)) & 15), value((packed >> (16 + 4 * j)) & 15)}; }
};
#endif

// The codes of MXFP4 in the form that the instruction set's Int4Codes has: a table, or computed.
template <class Codes = Int4Codes> auto mxfp4_codes() {
  if constexpr (requires(Codes c) { c.table; }) {
    Codes codes(0);
    for (size_t i = 0; i < sizeof codes.table / sizeof(uint16_t); i++)
      std::memcpy((char*)&codes.table + i * sizeof(uint16_t), (const char*)&TWICE_E2M1[i % 16] + 2, sizeof(uint16_t));
    return codes;
  } else return E2m1Codes();
}

// The same in the form of FloatCodes, if that is a table.
template <class Codes = FloatCodes> Codes mxfp4_floats() {
  Codes codes(0);
  for (int code = 0; code < 16; code++) codes.table[code] = TWICE_E2M1[code];
  return codes;
}

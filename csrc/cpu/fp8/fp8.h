// The part of the C ABI for weights in e4m3 codes with scales, and their expansion to panels of bfloat16.
#pragma once
#include <algorithm>

#include "api.h"
#include "tiles/tile.h"

// y = x * dequantized(weight)^T with x bfloat16, with the bits of gemm_bf16 and of its tile order. gemm_fp8.cpp.
struct GemmFp8Params {
  GemmParams gemm;       // weight: words of four codes along K, each code ^ 0x80; segments of whole words
  const float* scales;   // [panels, groups, 64]
  int32_t group_inputs;  // that share a scale: a multiple of 4 that divides the inputs
};
API void gemm_fp8(Pool*, const GemmFp8Params*);
API void gemm_fp8_tile(Pool*, const GemmFp8Params*);

// The same with the rows of experts, see ExpertGemmParams.
struct ExpertGemmFp8Params {
  GemmFp8Params product;
  ExpertSlices slices;
};
API void expert_gemm_fp8(Pool*, const ExpertGemmFp8Params*);
API void expert_gemm_fp8_tile(Pool*, const ExpertGemmFp8Params*);

constexpr int QUAD_WORDS = 2;  // of bfloat16 in a word of four codes

constexpr int MOST_FP8_ROWS = 3;  // whose sums fit into registers together with a table

// Expands `quads` words of codes for each of 64 outputs to out[quads * QUAD_WORDS][PANEL]. expand.cpp.
void expand_fp8(char* out, const char* codes, int quads, const float* scales);

// out[rows][PANEL] += rows of bfloat16, `x_stride` bytes apart, times the same. in_registers.cpp.
void add_fp8_rows(float* out, int rows, const char* x, size_t x_stride, const char* codes, int quads, const float* scales);
int fp8_rows_in_registers();  // the most rows for which the processor can do this; 0: none

// The codes and scales of all panels of a weight.
class Fp8Panels {
 public:
  explicit Fp8Panels(const GemmFp8Params& p)
      : codes_((const char*)p.gemm.weight), scales_(p.scales), quads_(p.gemm.inputs / 4), of_group_(p.group_inputs / 4) {}

  int words() const { return quads_ * QUAD_WORDS; }  // of bfloat16 along K

  // Calls body(codes, quads, scales) for each group's part of the words [first, first + count) of a panel, whole quads.
  template <class Body> void each_group(int panel, int first, int count, Body body) const {
    const int groups = quads_ / of_group_, end = (first + count) / QUAD_WORDS;
    const char* codes = codes_ + (size_t)panel * quads_ * STEP_BYTES;
    for (int quad = first / QUAD_WORDS, past; quad < end; quad = past) {
      const int group = quad / of_group_;
      past = std::min(end, (group + 1) * of_group_);
      body(codes + quad * STEP_BYTES, past - quad, scales_ + ((int64_t)panel * groups + group) * PANEL);
    }
  }

  // out[count][PANEL] = these words.
  void expand(char* out, int panel, int first, int count) const {
    each_group(panel, first, count, [&](const char* codes, int quads, const float* scales) {
      expand_fp8(out, codes, quads, scales);
      out += quads * QUAD_WORDS * STEP_BYTES;
    });
  }

 private:
  const char* codes_;
  const float* scales_;
  int quads_, of_group_;
};

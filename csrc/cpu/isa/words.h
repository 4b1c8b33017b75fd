// Products of a 32-bit word of weights and a word of activations without a dot instruction, see tile.h. Included by the
// bodies of isa.h, whose vectors and products it uses.
#pragma once

// Words that are multiplied without conversion.
struct Words {
  using Weights = I32;
  using Row = I32;
  static Weights weights(const void* p) { return load_words(p); }
  static Row row(const void* p) { return repeat_word(p); }
  static Weights weights(I32 w) { return w; }
  static Row row(I32 x) { return x; }
};

struct Fp32 : Words {  // one float
  using Acc = F32;
  static Acc dot(Acc acc, Weights w, Row x) { return add_product(acc, (F32)w, (F32)x); }
};

inline I32 even_half(I32 word) { return word << 16; }  // one half of a word of two bfloat16, as float
inline I32 odd_half(I32 word) { return word & (int32_t)0xffff0000; }

// A word is split in two before it is multiplied: weights once for all rows of a tile, activations once per row.
struct Halves {
  I32 even, odd;
};
struct SplitBf16 {  // two bfloat16, widened by a shift; the odd product is added first, as vdpbf16ps does
  using Acc = F32;
  using Weights = Halves;
  using Row = Halves;
  static Halves split(I32 w) { return {even_half(w), odd_half(w)}; }
  static Weights weights(const void* p) { return split(load_words(p)); }
  static Row row(const void* p) { return split(repeat_word(p)); }
  static Weights weights(I32 w) { return split(w); }
  static Row row(I32 x) { return split(x); }
  static Halves two_vectors(const uint16_t* p) { return {(I32)load_bf16(p + WIDE), (I32)load_bf16(p)}; }
  static Acc dot(Acc acc, Weights w, Row x) {
    return add_product_bf16(add_product_bf16(acc, (F32)w.odd, (F32)x.odd), (F32)w.even, (F32)x.even);
  }
};

// Nibbles widened to floats. A nibble is put into the mantissa of a power of two in which its bits count 1, 2, 4 and 8.
struct WidenedCodes {
  I32 nibble[4], power[4];
  F32 zero[4];
  explicit WidenedCodes(int zero_code) {  // the code that stands for 0
    EACH(j, 4) {
      nibble[j] = splat(15 << 4 * j), power[j] = splat((127 + 23 - 4 * j) << 23);
      zero[j] = (F32)power[j] + splat((float)zero_code);
    }
  }
  I32 half(I32 packed, int j) const { return (I32)((F32)((packed & nibble[j]) | power[j]) - zero[j]); }
  Halves word(I32 packed, int j) const { return {half(packed, j), half(packed >> 16, j)}; }
};

// The blocks of formats.h in a file, as in ggml-common.h; Source<Format>::put writes one to a panel.
#pragma once
#include "blocks/panel_writer.h"

// d, dmin, and twelve bytes of 6-bit scales and minimums: the first four of each in the low bits of bytes 0-3 and 4-7, the
// others in nibbles of bytes 8-11, with their highest bits above the first ones.
inline void put_scales_and_minimums(char* panel, int output, const uint8_t* block) {
  const uint8_t* s = block + 4;
  uint8_t field[16];
  for (int i = 0; i < 4; i++) {
    field[i] = s[i] & 63, field[8 + i] = s[4 + i] & 63;
    field[4 + i] = (uint8_t)((s[8 + i] & 15) | (s[i] >> 6) << 4);
    field[12 + i] = (uint8_t)(s[8 + i] >> 4 | (s[4 + i] >> 6) << 4);
  }
  put_half(panel, 0, output, block), put_half(panel, HALF_LINE, output, block + 2);
  put_fields(panel + 2 * HALF_LINE, output, field);
}

// Nibbles of 64 inputs in 32 bytes, the low ones first.
inline void read_nibbles(uint8_t* codes, const uint8_t* packed) {
  for (int i = 0; i < BLOCK; i++) codes[i] = packed[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

// Codes of two bits of 128 inputs in 32 bytes, the lowest ones first.
inline void read_pairs(uint8_t* codes, const uint8_t* packed) {
  for (int i = 0; i < BLOCK; i++) codes[i] = packed[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

template <class Format> struct Source;

template <> struct Source<Q8_0> {
  static constexpr int HALVES[] = {0};  // bytes of a block where float16 scales are
  static void put(char* panel, int output, const uint8_t* block) {
    put_half(panel, 0, output, block);
    for (int i = 0; i < Q8_0::BLOCK; i++)
      *at(panel, Q8_0::HEADER + i / 4 * WORD_LINE + output * WORD_BYTES + i % 4) = block[2 + i] ^ 0x80;
  }
};

// The numbers of 32 inputs in float16, their fifth bits, and their nibbles, the low ones first.
template <class Format, int NUMBERS, bool HAS_FIFTH> void put_thirty_two(char* panel, int output, const uint8_t* block) {
  uint8_t codes[32];
  for (int i = 0; i < NUMBERS; i++) put_half(panel, i * HALF_LINE, output, block + 2 * i);
  const uint8_t *fifth = block + 2 * NUMBERS, *packed = fifth + (HAS_FIFTH ? 4 : 0);
  for (int i = 0; i < 32; i++) {
    codes[i] = packed[i % 16] >> (i / 16 * 4) & 15;
    if (HAS_FIFTH) codes[i] |= (uint8_t)((fifth[i / 8] >> (i % 8) & 1) << 4);
  }
  put_group(panel + Format::HEADER, output, codes, 32, HAS_FIFTH);
}

template <> struct Source<Q4_0> {
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block) { put_thirty_two<Q4_0, 1, false>(panel, output, block); }
};

template <> struct Source<Q4_1> {
  static constexpr int HALVES[] = {0, 2};
  static void put(char* panel, int output, const uint8_t* block) { put_thirty_two<Q4_1, 2, false>(panel, output, block); }
};

template <> struct Source<Q5_0> {
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block) { put_thirty_two<Q5_0, 1, true>(panel, output, block); }
};

template <> struct Source<Q5_1> {
  static constexpr int HALVES[] = {0, 2};
  static void put(char* panel, int output, const uint8_t* block) { put_thirty_two<Q5_1, 2, true>(panel, output, block); }
};

template <> struct Source<IQ4_NL> {
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block) { put_thirty_two<IQ4_NL, 1, false>(panel, output, block); }
};

template <> struct Source<IQ4_XS> {
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block) {
    put_half(panel, 0, output, block), put_half(panel, HALF_LINE, output, block + 2);
    uint32_t low;
    std::memcpy(&low, block + 4, sizeof low);
    put_word(panel, 2 * HALF_LINE, output, low);
    for (int g = 0; g < 8; g++) {
      uint8_t codes[32];
      for (int i = 0; i < 32; i++) codes[i] = block[8 + 16 * g + i % 16] >> (i / 16 * 4) & 15;
      put_group(panel + IQ4_XS::HEADER + g * IQ4_XS::Codes::BYTES, output, codes, 32, 0);
    }
  }
};

template <> struct Source<Q2_K> {
  static constexpr int HALVES[] = {80, 82};
  static void put(char* panel, int output, const uint8_t* block) {
    uint8_t codes[BLOCK];
    put_half(panel, 0, output, block + 80), put_half(panel, HALF_LINE, output, block + 82);
    read_pairs(codes, block + 16);
    for (int i = 0; i < 16; i++)
      *at(panel, 2 * HALF_LINE + i / 4 * WORD_LINE + output * WORD_BYTES + i % 4) = block[i];
    put_pairs<Q2_K>(panel, output, codes);
  }
};

// The scales' low four bits are in the nibbles of bytes 96-103, the low nibbles first; the high two in bytes 104-107.
template <> struct Source<Q3_K> {
  static constexpr int HALVES[] = {108};
  static void put(char* panel, int output, const uint8_t* block) {
    uint8_t codes[BLOCK], field[16];
    put_half(panel, 0, output, block + 108);
    for (int i = 0; i < 16; i++)
      field[i] = (uint8_t)((block[96 + i % 8] >> (i / 8 * 4) & 15) | (block[104 + i % 4] >> (i / 4 * 2) & 3) << 4);
    put_fields(panel + HALF_LINE, output, field);
    read_pairs(codes, block + 32);
    for (int i = 0; i < BLOCK; i++) codes[i] |= (uint8_t)((block[i % 32] >> (i / 32) & 1) << 2);
    put_pairs<Q3_K>(panel, output, codes);
  }
};

template <> struct Source<Q4_K> {
  static constexpr int HALVES[] = {0, 2};
  static void put(char* panel, int output, const uint8_t* block) {
    uint8_t codes[BLOCK];
    put_scales_and_minimums(panel, output, block);
    read_nibbles(codes, block + 16);
    put_groups<Q4_K>(panel, output, codes, 0);
  }
};

template <> struct Source<Q5_K> {
  static constexpr int HALVES[] = {0, 2};
  static void put(char* panel, int output, const uint8_t* block) {
    uint8_t codes[BLOCK];
    put_scales_and_minimums(panel, output, block);
    read_nibbles(codes, block + 48);
    for (int i = 0; i < BLOCK; i++) codes[i] |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
    put_groups<Q5_K>(panel, output, codes, 1);
  }
};

template <> struct Source<Q6_K> {
  static constexpr int HALVES[] = {208};
  static void put(char* panel, int output, const uint8_t* block) {
    uint8_t codes[BLOCK];
    put_half(panel, 0, output, block + 208);
    for (int g = 0; g < 16; g++) *at(panel, HALF_LINE + g * PANEL + output) = block[192 + g];
    for (int i = 0; i < BLOCK; i++) {
      const int low = block[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
      const int high = block[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      codes[i] = (uint8_t)(low | high << 4);
    }
    put_groups<Q6_K>(panel, output, codes, 2);
  }
};

template <> struct Source<TQ2_0> {
  static constexpr int HALVES[] = {64};
  static void put(char* panel, int output, const uint8_t* block) {
    uint8_t codes[BLOCK];
    put_half(panel, 0, output, block + 64);
    read_pairs(codes, block);
    put_pairs<TQ2_0>(panel, output, codes);
  }
};

// Bytes are fractions of 256; times 3, their whole part is a code, and the rest has the next. The codes of 32, 16, and 4 bytes
// follow each other: first the first of each byte.
template <> struct Source<TQ1_0> {
  static constexpr int HALVES[] = {52};
  static uint8_t* read_fractions(uint8_t* codes, const uint8_t* packed, int bytes, int each) {
    for (int i = 0; i < bytes; i++)
      for (int n = 0, rest = packed[i]; n < each; n++, rest = rest * 3 & 255) codes[n * bytes + i] = (uint8_t)(rest * 3 >> 8);
    return codes + bytes * each;
  }
  static void put(char* panel, int output, const uint8_t* block) {
    uint8_t codes[BLOCK];
    put_half(panel, 0, output, block + 52);
    read_fractions(read_fractions(read_fractions(codes, block, 32, 5), block + 32, 16, 5), block + 48, 4, 4);
    put_pairs<TQ1_0>(panel, output, codes);
  }
};

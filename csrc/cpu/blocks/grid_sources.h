// The blocks of grid_formats.h in a file, as in ggml-common.h: places of points in a grid, signs of their numbers, scales.
#pragma once
#include "blocks/sources.h"

// The codes of a point's numbers, which are places in the table of a format, or numbers themselves.
template <int SIZE, int POSITIVE, int NEGATIVE> void put_point(uint8_t* codes, const uint8_t* point, int signs) {
  for (int i = 0; i < SIZE; i++) codes[i] = (uint8_t)(point[i] ^ (signs >> i & 1 ? NEGATIVE : POSITIVE));
}

// Seven signs are stored; of all eight an even number is negative.
inline int eight_signs(uint32_t seven) { return (int)(seven | (uint32_t)(__builtin_popcount(seven) & 1) << 7); }

template <class Word> Word word_of(const uint8_t* p) {
  Word word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

inline int nibble_of(const uint8_t* p, int i) { return p[i / 2] >> (i % 2 * 4) & 15; }

inline void read_nibble_scales(uint8_t* scales, const uint8_t* packed, int count) {
  for (int g = 0; g < count; g++) scales[g] = (uint8_t)nibble_of(packed, g);
}

template <class Format> void put_d_and_scales(char* panel, int output, const uint8_t* d, const uint8_t* scales) {
  put_half(panel, 0, output, d);
  put_nibbles(panel + HALF_LINE, output, scales, GROUPS_PER_BLOCK<Format>);
}

// Of 32 inputs four places, and a word of four times seven signs and a scale.
template <> struct Source<IQ2_XXS> {
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block, const uint8_t* grid) {
    uint8_t codes[BLOCK], scales[8];
    for (int g = 0; g < 8; g++) {
      const uint8_t* places = block + 2 + 8 * g;
      const auto word = word_of<uint32_t>(places + 4);
      for (int i = 0; i < 4; i++) put_point<8, 0, 4>(codes + 32 * g + 8 * i, grid + 8 * places[i], eight_signs(word >> (7 * i) & 127));
      scales[g] = (uint8_t)(word >> 28);
    }
    put_d_and_scales<IQ2_XXS>(panel, output, block, scales);
    put_pairs<IQ2_XXS>(panel, output, codes);
  }
};

template <class Format> void put_iq2_in_sixteens(char* panel, int output, const uint8_t* d, const uint8_t* packed, const uint8_t* codes) {
  uint8_t scales[16];
  read_nibble_scales(scales, packed, 16);
  put_d_and_scales<Format>(panel, output, d, scales);
  put_pairs<Format>(panel, output, codes);
}

template <> struct Source<IQ2_XS> {  // words of a place in nine bits and seven signs
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block, const uint8_t* grid) {
    uint8_t codes[BLOCK];
    for (int i = 0; i < 32; i++) {
      const auto word = word_of<uint16_t>(block + 2 + 2 * i);
      put_point<8, 0, 4>(codes + 8 * i, grid + 8 * (word & 511), eight_signs(word >> 9));
    }
    put_iq2_in_sixteens<IQ2_XS>(panel, output, block, block + 66, codes);
  }
};

template <> struct Source<IQ2_S> {  // the low bytes of places, signs, the upper two bits of places
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block, const uint8_t* grid) {
    uint8_t codes[BLOCK];
    for (int i = 0; i < 32; i++) {
      const int place = block[2 + i] | (block[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
      put_point<8, 0, 4>(codes + 8 * i, grid + 8 * place, block[34 + i]);
    }
    put_iq2_in_sixteens<IQ2_S>(panel, output, block, block + 74, codes);
  }
};

template <> struct Source<IQ3_XXS> {  // places, then words of four times seven signs and a scale
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block, const uint8_t* grid) {
    uint8_t codes[BLOCK], scales[8];
    for (int g = 0; g < 8; g++) {
      const auto word = word_of<uint32_t>(block + 66 + 4 * g);
      for (int i = 0; i < 8; i++) {
        const int signs = eight_signs(word >> (i / 2 * 7) & 127) >> (i % 2 * 4);
        put_point<4, 0, 8>(codes + 32 * g + 4 * i, grid + 4 * block[2 + 8 * g + i], signs);
      }
      scales[g] = (uint8_t)(word >> 28);
    }
    put_d_and_scales<IQ3_XXS>(panel, output, block, scales);
    put_groups<IQ3_XXS>(panel, output, codes, 0);
  }
};

// The low bytes of places, their ninth bits, signs, scales. Code c stands for 2 * c - 15.
template <> struct Source<IQ3_S> {
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block, const uint8_t* grid) {
    uint8_t codes[BLOCK], scales[8];
    for (int i = 0; i < 64; i++) {
      const int place = block[2 + i] | (block[66 + i / 8] >> (i % 8) & 1) << 8;
      put_point<4, 8, 7>(codes + 4 * i, grid + 4 * place, nibble_of(block + 74, i));
    }
    read_nibble_scales(scales, block + 106, 8);
    put_d_and_scales<IQ3_S>(panel, output, block, scales);
    put_groups<IQ3_S>(panel, output, codes, 0);
  }
};

// The low bytes of places; of each 32 inputs a word of four times three upper bits, a scale, and whether 1/8 is subtracted.
template <> struct Source<IQ1_S> {
  static constexpr int HALVES[] = {0};
  static void put(char* panel, int output, const uint8_t* block, const uint8_t* grid) {
    uint8_t codes[BLOCK], scales[8];
    for (int i = 0; i < 32; i++) {
      const auto word = word_of<uint16_t>(block + 34 + i / 4 * 2);
      std::memcpy(codes + 8 * i, grid + 8 * (block[2 + i] | (word >> (i % 4 * 3) & 7) << 8), 8);
      scales[i / 4] = (uint8_t)(word >> 12);
    }
    put_d_and_scales<IQ1_S>(panel, output, block, scales);
    put_pairs<IQ1_S>(panel, output, codes);
  }
};

// The low bytes of places; nibbles of three upper bits and whether 1/8 is subtracted; words of four scales and four bits of d.
template <> struct Source<IQ1_M> {
  static uint16_t d(const uint8_t* block) {
    int bits = 0;
    for (int i = 0; i < 4; i++) bits |= word_of<uint16_t>(block + 48 + 2 * i) >> 12 << (4 * i);
    return (uint16_t)bits;
  }
  static void put(char* panel, int output, const uint8_t* block, const uint8_t* grid) {
    uint8_t codes[BLOCK], scales[16];
    uint32_t raised = 0;
    for (int i = 0; i < 32; i++) {
      const int upper = nibble_of(block + 32, i);
      std::memcpy(codes + 8 * i, grid + 8 * (block[i] | (upper & 7) << 8), 8);
      raised |= (uint32_t)(upper < 8) << i;
    }
    for (int g = 0; g < 16; g++) scales[g] = word_of<uint16_t>(block + 48 + g / 4 * 2) >> (g % 4 * 3) & 7;
    const uint16_t half = d(block);
    put_d_and_scales<IQ1_M>(panel, output, (const uint8_t*)&half, scales);
    put_pairs<IQ1_M>(panel, output, codes);
    put_word(panel + IQ1_M::HEADER, PairsAndSigns::SIGNS, output, raised);
  }
};

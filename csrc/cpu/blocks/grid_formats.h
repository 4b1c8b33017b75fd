// The block formats of GGUF files whose codes are places in a grid: eight or four inputs have one of 256 to 2048 points.
//
// A panel has the points' numbers themselves, in codes of 2 to 4 bits, so products need no grid; a block is larger than in the
// file. The scale of a group is d times an odd number, 2 * s + 1, and `nibbles` have s of eight groups. In IQ1_S and IQ1_M a
// number of the grid, -1 to 1, is raised or lowered by 1/8: for 32 inputs, in the highest bit of a group's nibble, or for eight.
//
//   IQ2_XXS        d [64], nibbles [64]       8 groups of 32: bits [64], pairs [2][64], places in a table
//   IQ2_XS, IQ2_S  d [64], nibbles [2][64]    8 times two groups of 16: the same
//   IQ3_XXS        d [64], nibbles [64]       8 groups of 32: octets [4][64], places in a table
//   IQ3_S          d [64], nibbles [64]       8 groups of 32: octets [4][64], halves of odd numbers
//   IQ1_S          d [64], nibbles [64]       8 groups of 32: pairs [2][64]
//   IQ1_M          d [64], nibbles [2][64]    16 groups of 16: pairs [64]; after all of them signs [64]
#pragma once
#include "blocks/formats.h"

// The scales of a block, times the FACTOR of the format's codes. All products are exact in float.
template <class Format> inline void odd_scales(auto& to, const char* block) {
  for (int v = 0; v < PANEL_VECTORS; v++) {
    const F32 d = halves(block, 0, v) * Format::FACTOR;
    EACH(i, GROUPS_PER_BLOCK<Format> / 8) {
      const I32 word = load_words(block + HALF_LINE + i * WORD_LINE + v * sizeof(I32));
      EACH(g, 8) store(to.scale[8 * i + g] + v * LANES, d * to_float((shifted(word, 1 - 4 * g) & 30) | 1));
    }
  }
}

struct IQ2_XXS {
  using Codes = LookedUp<Pairs<32, 1>, Iq2Table>;
  static constexpr int BLOCK = 256, FILE_BYTES = 66, GROUP = 32, CENTRE = 43;
  static constexpr bool HAS_LEAST = false;
  static constexpr float FACTOR = 0.125f;
  static constexpr size_t HEADER = HALF_LINE + WORD_LINE;
  static void scales(auto& to, int, const char* block) { odd_scales<IQ2_XXS>(to, block); }
};

template <int BYTES> struct Iq2InSixteens {
  using Codes = LookedUp<Pairs<32, 1>, Iq2Table>;
  static constexpr int BLOCK = 256, FILE_BYTES = BYTES, GROUP = 16, CENTRE = 43;
  static constexpr bool HAS_LEAST = false;
  static constexpr float FACTOR = 0.125f;
  static constexpr size_t HEADER = HALF_LINE + 2 * WORD_LINE;
  static void scales(auto& to, int, const char* block) { odd_scales<Iq2InSixteens>(to, block); }
};
using IQ2_XS = Iq2InSixteens<74>;
using IQ2_S = Iq2InSixteens<82>;

struct IQ3_XXS {
  using Codes = LookedUp<Octets<32, 0>, Iq3Table>;  // numbers of the grid, halved
  static constexpr int BLOCK = 256, FILE_BYTES = 98, GROUP = 32, CENTRE = 31;
  static constexpr bool HAS_LEAST = false;
  static constexpr float FACTOR = 0.5f;
  static constexpr size_t HEADER = HALF_LINE + WORD_LINE;
  static void scales(auto& to, int, const char* block) { odd_scales<IQ3_XXS>(to, block); }
};

struct IQ3_S {
  using Codes = OddNumbers;
  static constexpr int BLOCK = 256, FILE_BYTES = 110, GROUP = 32, CENTRE = 15;
  static constexpr bool HAS_LEAST = false;
  static constexpr float FACTOR = 1.0f;
  static constexpr size_t HEADER = HALF_LINE + WORD_LINE;
  static void scales(auto& to, int, const char* block) { odd_scales<IQ3_S>(to, block); }
};

struct IQ1_S {
  using Codes = Pairs<32, 0>;
  static constexpr int BLOCK = 256, FILE_BYTES = 50, GROUP = 32, CENTRE = 0;
  static constexpr bool HAS_LEAST = true;  // numbers begin at -1 + 1/8, or at -1 - 1/8; where d is 0, zeros are positive
  static constexpr size_t HEADER = HALF_LINE + WORD_LINE;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v);
      const I32 word = load_words(block + HALF_LINE + v * sizeof(I32));
      EACH(g, 8) {
        const F32 scale = d * to_float((shifted(word, 1 - 4 * g) & 14) | 1);
        store(to.scale[g] + v * LANES, scale);
        store(to.least[g] + v * LANES, scale * to_float(7 + (shifted(word, -2 - 4 * g) & 2)) * 0.125f);
      }
    }
  }
};

struct IQ1_M {
  using Codes = PairsAndSigns;  // eighths
  static constexpr int BLOCK = 256, FILE_BYTES = 56, GROUP = 16, CENTRE = 9;
  static constexpr bool HAS_LEAST = false;
  static constexpr float FACTOR = 0.125f;
  static constexpr size_t HEADER = HALF_LINE + 2 * WORD_LINE;
  static void scales(auto& to, int, const char* block) { odd_scales<IQ1_M>(to, block); }
};

// The block formats of GGUF files that are multiplied in panels, and those panels. grid_formats.h has the formats with grids.
//
// A weight is scale * (code - centre) - least, where scale and least belong to a group of inputs: d and -m, in the K-quants d
// and dmin times 4, 6 or 8 bits. A panel has the blocks of 64 outputs, one block of K after another, in the bytes that they have
// in the file: first the scales of all 64, then the codes, group after group, as codes.h has them.
//
//   Q8_0  32 inputs    d [64]                               words [8][64], code + 128
//   Q4_0  32 inputs    d [64]                               octets [4][64]
//   Q4_1  32 inputs    d [64], m [64]                       octets [4][64]
//   Q5_0  32 inputs    d [64]                               bits [64], octets [4][64]
//   Q5_1  32 inputs    d [64], m [64]                       bits [64], octets [4][64]
//   Q2_K  256 inputs   d [64], dmin [64], nibbles [4][64]   16 groups of 16: pairs [64]
//   Q3_K  256 inputs   d [64], fields [3][64]               8 times two groups of 16: bits [64], pairs [2][64]
//   Q4_K  256 inputs   d [64], dmin [64], fields [3][64]    8 groups of 32: octets [4][64]
//   Q5_K  256 inputs   d [64], dmin [64], fields [3][64]    8 groups of 32: bits [64], octets [4][64]
//   Q6_K  256 inputs   d [64], scales [16][64] int8         16 groups of 16: bits [64], octets [2][64]
//
//   IQ4_NL  32 inputs   d [64]                               octets [4][64]; codes are places in a table of numbers
//   IQ4_XS  256 inputs  d [64], high [64], low [64]          8 groups of 32: the same
//   TQ1_0, TQ2_0  256   d [64]                               8 groups of 32: pairs [2][64]; in TQ1_0's files five codes in a byte
//
// The words of `fields` have five fields of 6 bits each, scales and then minimums of eight groups, or scales of sixteen; the
// sixteenth is in their last two bits. The words of `nibbles` have the scales and minimums of four groups in turn. Of the scales of
// eight groups `low` has four bits each, 32 for an output, and `high` the upper two, 16 for an output.
#pragma once
#include "blocks/codes.h"

constexpr int SLICE_INPUTS = 256;  // at most, of blocks that are multiplied together
constexpr size_t HALF_LINE = PANEL * 2;

// The scales of the groups of a slice.
template <class Format> struct SliceScales {
  alignas(64) float scale[SLICE_INPUTS / Format::GROUP][PANEL];
  alignas(64) float least[Format::HAS_LEAST ? SLICE_INPUTS / Format::GROUP : 1][PANEL];
};

template <class Format> constexpr int GROUPS_PER_BLOCK = Format::BLOCK / Format::GROUP;
template <class Format> constexpr int SLICE_BLOCKS = SLICE_INPUTS / Format::BLOCK;

// Bytes of the blocks of a panel's outputs.
template <class Format> constexpr size_t panel_block_bytes() {
  size_t bytes = Format::HEADER + Format::BLOCK / Format::Codes::INPUTS * Format::Codes::BYTES;
  if constexpr (requires { Format::Codes::AFTER; }) bytes += Format::Codes::AFTER;
  return bytes;
}
template <class Format> constexpr size_t PANEL_BLOCK_BYTES = panel_block_bytes<Format>();

// Numbers in float16 of vector v of a block's outputs, in line `line` of its halves.
inline F32 halves(const char* block, int line, int v) { return load_fp16(block + line * HALF_LINE + v * LANES * 2); }

// The sixteen fields of vector v of a block's outputs.
struct Fields {
  I32 words[3], last;
  Fields(const char* fields, int v) {
    EACH(i, 3) words[i] = load_words(fields + i * WORD_LINE + v * sizeof(I32));
    last = ((words[0] >> 30) & 3) | ((words[1] >> 28) & 12) | ((words[2] >> 26) & 48);
  }
  I32 operator[](int i) const { return i == 15 ? last : (words[i / 5] >> (i % 5 * 6)) & 63; }
};

// Common to all formats:
//   Codes                the codes of a group
//   BLOCK, FILE_BYTES    inputs and bytes of a block in a file
//   GROUP, CENTRE        inputs of a group, and what the dots add to a code
//   HAS_LEAST            whether there are minimums
//   HEADER               bytes of a panel's block before the codes
//   scales(to, g, block) a block's scales, from group g of a slice on
struct Q8_0 {
  using Codes = Bytes;
  static constexpr int BLOCK = 32, FILE_BYTES = 34, GROUP = 32, CENTRE = Int8::OFFSET;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE;
  static void scales(auto& to, int g, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) store(to.scale[g] + v * LANES, halves(block, 0, v));
  }
};

template <int HIGH> struct WithCentre {
  using Codes = Octets<32, HIGH>;
  static constexpr int BLOCK = 32, FILE_BYTES = 18 + 4 * HIGH, GROUP = 32, CENTRE = 8 << HIGH;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE;
  static void scales(auto& to, int g, const char* block) { Q8_0::scales(to, g, block); }
};
using Q4_0 = WithCentre<0>;
using Q5_0 = WithCentre<1>;

struct IQ4_NL {
  using Codes = LookedUp<Octets<32, 0>, Iq4Table>;
  static constexpr int BLOCK = 32, FILE_BYTES = 18, GROUP = 32, CENTRE = Int8::OFFSET;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE;
  static void scales(auto& to, int g, const char* block) { Q8_0::scales(to, g, block); }
};

struct IQ4_XS {
  using Codes = LookedUp<Octets<32, 0>, Iq4Table>;
  static constexpr int BLOCK = 256, FILE_BYTES = 136, GROUP = 32, CENTRE = Int8::OFFSET, SCALE_CENTRE = 32;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = 2 * HALF_LINE + WORD_LINE;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v);
      const I32 high = (I32)load_bf16((const uint16_t*)(block + HALF_LINE) + v * LANES);  // pairs in the upper half of a word
      const I32 low = load_words(block + 2 * HALF_LINE + v * sizeof(I32));
      EACH(g, 8) {
        const I32 scale = ((low >> (4 * g)) & 15) | ((high >> (16 + 2 * g)) & 3) << 4;
        store(to.scale[g] + v * LANES, d * to_float(scale - SCALE_CENTRE));
      }
    }
  }
};

template <int HIGH> struct WithMinimum {
  using Codes = Octets<32, HIGH>;
  static constexpr int BLOCK = 32, FILE_BYTES = 20 + 4 * HIGH, GROUP = 32, CENTRE = 0;
  static constexpr bool HAS_LEAST = true;
  static constexpr size_t HEADER = 2 * HALF_LINE;
  static void scales(auto& to, int g, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      store(to.scale[g] + v * LANES, halves(block, 0, v));
      store(to.least[g] + v * LANES, -halves(block, 1, v));
    }
  }
};
using Q4_1 = WithMinimum<0>;
using Q5_1 = WithMinimum<1>;

struct Q2_K {
  using Codes = Pairs<16, 0>;
  static constexpr int BLOCK = 256, FILE_BYTES = 84, GROUP = 16, CENTRE = 0;
  static constexpr bool HAS_LEAST = true;
  static constexpr size_t HEADER = 2 * HALF_LINE + 4 * WORD_LINE;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v), least = halves(block, 1, v);
      EACH(i, 4) {
        const I32 word = load_words(block + 2 * HALF_LINE + i * WORD_LINE + v * sizeof(I32));
        EACH(g, 4) {
          store(to.scale[4 * i + g] + v * LANES, d * to_float((word >> (8 * g)) & 15));
          store(to.least[4 * i + g] + v * LANES, least * to_float((word >> (8 * g + 4)) & 15));
        }
      }
    }
  }
};

struct Q3_K {
  using Codes = Pairs<32, 1>;
  static constexpr int BLOCK = 256, FILE_BYTES = 110, GROUP = 16, CENTRE = 4, SCALE_CENTRE = 32;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE + 3 * WORD_LINE;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v);
      const Fields fields(block + HALF_LINE, v);
      EACH(g, 16) store(to.scale[g] + v * LANES, d * to_float(fields[g] - SCALE_CENTRE));
    }
  }
};

template <int HIGH> struct WithFields {
  using Codes = Octets<32, HIGH>;
  static constexpr int BLOCK = 256, FILE_BYTES = 144 + 32 * HIGH, GROUP = 32, CENTRE = 0;
  static constexpr bool HAS_LEAST = true;
  static constexpr size_t HEADER = 2 * HALF_LINE + 3 * WORD_LINE;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v), least = halves(block, 1, v);
      const Fields fields(block + 2 * HALF_LINE, v);
      EACH(g, 8) {
        store(to.scale[g] + v * LANES, d * to_float(fields[g]));
        store(to.least[g] + v * LANES, least * to_float(fields[8 + g]));
      }
    }
  }
};
using Q4_K = WithFields<0>;
using Q5_K = WithFields<1>;

struct Q6_K {
  using Codes = Octets<16, 2>;
  static constexpr int BLOCK = 256, FILE_BYTES = 210, GROUP = 16, CENTRE = 32;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE + 16 * PANEL;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v);
      for (int g = 0; g < 16; g++) store(to.scale[g] + v * LANES, d * load_s8(block + HALF_LINE + g * PANEL + v * LANES));
    }
  }
};

template <int BYTES> struct Ternary {
  using Codes = Pairs<32, 0>;
  static constexpr int BLOCK = 256, FILE_BYTES = BYTES, GROUP = 32, CENTRE = 1;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v);
      EACH(g, 8) store(to.scale[g] + v * LANES, d);
    }
  }
};
using TQ1_0 = Ternary<54>;
using TQ2_0 = Ternary<66>;

template <class... Formats> constexpr bool FILL_THEIR_BYTES = ((PANEL_BLOCK_BYTES<Formats> == (size_t)PANEL * Formats::FILE_BYTES) && ...);
static_assert(FILL_THEIR_BYTES<Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ2_0>);

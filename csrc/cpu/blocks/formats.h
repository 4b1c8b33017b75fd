// The block formats of GGUF files that are multiplied as they are: their panels, and their codes in registers.
//
// A weight is scale * (code - centre) - least, where scale and least belong to a group of inputs: d and -m, in the K-quants d
// and dmin times 4, 6 or 8 bits. A panel has the blocks of 64 outputs, one block of K after another, in the bytes that they have
// in the file: first the scales of all 64, then the codes, group after group.
//
//   Q8_0  32 inputs    d [64]                               words [8][64], code + 128
//   Q4_0  32 inputs    d [64]                               octets [4][64]
//   Q4_1  32 inputs    d [64], m [64]                       octets [4][64]
//   Q5_0  32 inputs    d [64]                               bits [64], octets [4][64]
//   Q5_1  32 inputs    d [64], m [64]                       bits [64], octets [4][64]
//   Q2_K  256 inputs   d [64], dmin [64], nibbles [4][64]   16 groups of 16: pairs [64]
//   Q3_K  256 inputs   d [64], fields [3][64]               16 groups of 16: pairs [64]; after all of them bits [8][64]
//   Q4_K  256 inputs   d [64], dmin [64], fields [3][64]    8 groups of 32: octets [4][64]
//   Q5_K  256 inputs   d [64], dmin [64], fields [3][64]    8 groups of 32: bits [64], octets [4][64]
//   Q6_K  256 inputs   d [64], scales [16][64] int8         16 groups of 16: bits [64], octets [2][64]
//
//   IQ4_NL  32 inputs   d [64]                               octets [4][64]; codes are places in a table of numbers
//   IQ4_XS  256 inputs  d [64], high [64], low [64]          8 groups of 32: the same
//
// Words, octets and pairs have 32 bits: four codes of 8 bits, eight of 4, or sixteen of 2; code 4 * j + b is at bit 8 * b, or
// in octets at 8 * b + 4 if j is odd, of octet j / 2, and in pairs at 8 * b + 2 * j. `bits` has the higher bits of a group: bit
// 8 * b + j is that of code 4 * j + b (Q6_K: two bits at 8 * b + 2 * j); in Q3_K of two groups, of the second at 8 * b + 4 + j.
// The words of `fields` have five fields of 6 bits each, scales and then minimums of eight groups, or scales of sixteen; the
// sixteenth is in their last two bits. The words of `nibbles` have the scales and minimums of four groups in turn. Of the scales of
// eight groups `low` has four bits each, 32 for an output, and `high` the upper two, 16 for an output.
#pragma once
#include "blocks/parameters.h"
#include "gemm/gemm.h"

constexpr int SLICE_INPUTS = 256;  // at most, of blocks that are multiplied together
constexpr size_t HALF_LINE = PANEL * 2, WORD_LINE = STEP_BYTES;

// The scales of the groups of a slice.
template <class Format> struct SliceScales {
  alignas(64) float scale[SLICE_INPUTS / Format::GROUP][PANEL];
  alignas(64) float least[Format::HAS_LEAST ? SLICE_INPUTS / Format::GROUP : 1][PANEL];
};

// Codes below 128, which are multiplied as they are, as the weights of a dot.
template <class Weights = Int8::Weights> inline Weights small_codes(I32 bytes) {
  if constexpr (std::is_same_v<Weights, I32>) return bytes;
  else return {bytes & 0x00ff00ff, (bytes >> 8) & 0x00ff00ff};
}

inline I32 shifted(I32 x, int by) { return by < 0 ? x >> -by : x << by; }

// The codes of a group in a panel, and in registers:
//   MOST            the highest code
//   BYTES           of a group
//   word(lanes, j)  word j of a group, as weights of Int8;  bytes(lanes, j): as four bytes, which SmallCodes multiplies
struct Bytes {
  static constexpr int MOST = 255;
  static constexpr size_t BYTES = 8 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) { return load_words(lanes + j * STEP_BYTES); }
  static Int8::Weights word(const char* lanes, int j) { return Int8::weights(lanes + j * STEP_BYTES); }
};

template <int GROUP, int HIGH> struct Octets {  // with HIGH higher bits
  static constexpr int MOST = (16 << HIGH) - 1;
  static constexpr size_t FIRST = HIGH ? WORD_LINE : 0, BYTES = FIRST + GROUP / 8 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) {
    const I32 octet = load_words(lanes + FIRST + j / 2 * STEP_BYTES), low = (j % 2 ? octet >> 4 : octet) & 0x0f0f0f0f;
    if constexpr (HIGH == 0) return low;
    else return low | (shifted(load_words(lanes), 4 - HIGH * j) & ((1 << HIGH) - 1) * 0x10101010);
  }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

inline I32 pairs(const char* lanes, int j) { return (load_words(lanes) >> (2 * j)) & 0x03030303; }

struct Pairs {
  static constexpr int MOST = 3;
  static constexpr size_t BYTES = WORD_LINE;
  static I32 bytes(const char* lanes, int j) { return pairs(lanes, j); }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

struct PairsAndBits {
  static constexpr int MOST = 7;
  static constexpr size_t BYTES = WORD_LINE, BITS = 16 * WORD_LINE;
  static I32 bytes_of_group(const char* block, int g, int j) {  // of all groups, because two share their bits
    const I32 bits = load_words(block + BITS + g / 2 * WORD_LINE) >> (g % 2 * 4 + j);
    return pairs(block + g * BYTES, j) | (bits & 0x01010101) << 2;
  }
};

struct TableCodes {  // numbers + 128
  static constexpr int MOST = 255;
  static constexpr size_t BYTES = Octets<32, 0>::BYTES;
  static constexpr uint8_t NUMBERS[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
  static I32 bytes(const char* lanes, int j) { return look_up(NUMBERS, Octets<32, 0>::bytes(lanes, j)); }
  static Int8::Weights word(const char* lanes, int j) { return Int8::weights(bytes(lanes, j)); }
};

// Word j of group g of a block's codes, as bytes.
template <class Codes> inline I32 bytes_of(const char* block, int g, int j) {
  if constexpr (requires { Codes::bytes_of_group(block, g, j); }) return Codes::bytes_of_group(block, g, j);
  else return Codes::bytes(block + g * Codes::BYTES, j);
}

// The others as bytes.
template <int GROUP> struct Expanded {
  static constexpr size_t BYTES = GROUP / 4 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) { return load_words(lanes + j * STEP_BYTES); }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

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
//   BLOCK, BLOCK_BYTES   inputs and bytes of a block in a file
//   GROUP, CENTRE        inputs of a group, and what the dots add to a code
//   HAS_LEAST            whether there are minimums
//   HEADER               bytes of a panel's block before the codes
//   scales(to, g, block) a block's scales, from group g of a slice on
struct Q8_0 {
  using Codes = Bytes;
  static constexpr int BLOCK = 32, BLOCK_BYTES = 34, GROUP = 32, CENTRE = Int8::OFFSET;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE;
  static void scales(auto& to, int g, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) store(to.scale[g] + v * LANES, halves(block, 0, v));
  }
};

template <int HIGH> struct WithCentre {
  using Codes = Octets<32, HIGH>;
  static constexpr int BLOCK = 32, BLOCK_BYTES = 18 + 4 * HIGH, GROUP = 32, CENTRE = 8 << HIGH;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE;
  static void scales(auto& to, int g, const char* block) { Q8_0::scales(to, g, block); }
};
using Q4_0 = WithCentre<0>;
using Q5_0 = WithCentre<1>;

struct IQ4_NL {
  using Codes = TableCodes;
  static constexpr int BLOCK = 32, BLOCK_BYTES = 18, GROUP = 32, CENTRE = Int8::OFFSET;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE;
  static void scales(auto& to, int g, const char* block) { Q8_0::scales(to, g, block); }
};

struct IQ4_XS {
  using Codes = TableCodes;
  static constexpr int BLOCK = 256, BLOCK_BYTES = 136, GROUP = 32, CENTRE = Int8::OFFSET, SCALE_CENTRE = 32;
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
  static constexpr int BLOCK = 32, BLOCK_BYTES = 20 + 4 * HIGH, GROUP = 32, CENTRE = 0;
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
  using Codes = Pairs;
  static constexpr int BLOCK = 256, BLOCK_BYTES = 84, GROUP = 16, CENTRE = 0;
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
  using Codes = PairsAndBits;
  static constexpr int BLOCK = 256, BLOCK_BYTES = 110, GROUP = 16, CENTRE = 4, SCALE_CENTRE = 32;
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
  static constexpr int BLOCK = 256, BLOCK_BYTES = 144 + 32 * HIGH, GROUP = 32, CENTRE = 0;
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
  static constexpr int BLOCK = 256, BLOCK_BYTES = 210, GROUP = 16, CENTRE = 32;
  static constexpr bool HAS_LEAST = false;
  static constexpr size_t HEADER = HALF_LINE + 16 * PANEL;
  static void scales(auto& to, int, const char* block) {
    for (int v = 0; v < PANEL_VECTORS; v++) {
      const F32 d = halves(block, 0, v);
      for (int g = 0; g < 16; g++) store(to.scale[g] + v * LANES, d * load_s8(block + HALF_LINE + g * PANEL + v * LANES));
    }
  }
};

template <class Format> constexpr int GROUPS_PER_BLOCK = Format::BLOCK / Format::GROUP;
template <class Format> constexpr size_t PANEL_BLOCK_BYTES = (size_t)PANEL * Format::BLOCK_BYTES;
template <class Format> constexpr int SLICE_BLOCKS = SLICE_INPUTS / Format::BLOCK;

template <class... Formats> constexpr bool fill_their_bytes(size_t more = 0) {
  return ((Formats::HEADER + GROUPS_PER_BLOCK<Formats> * Formats::Codes::BYTES + more == PANEL_BLOCK_BYTES<Formats>) && ...);
}
static_assert(fill_their_bytes<Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, Q2_K, Q4_K, Q5_K, Q6_K>() && fill_their_bytes<Q3_K>(8 * WORD_LINE));

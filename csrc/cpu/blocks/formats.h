// The block formats of GGUF files that are multiplied as they are: their panels, and their codes in registers.
//
// A weight is scale * (code - centre) - least, where scale and least belong to a group of inputs: d * (6 or 8 bits) in the
// K-quants, d in Q8_0. A panel has the blocks of 64 outputs, one block of K after another, in the bytes that they have in the
// file: first the scales of all 64, then the codes, group after group.
//
//   Q8_0  32 inputs    d [64]                                      words [8][64], code + 128
//   Q4_K  256 inputs   d [64], dmin [64], fields [3][64]           8 groups of 32: octets [4][64]
//   Q5_K  256 inputs   d [64], dmin [64], fields [3][64]           8 groups of 32: bits [64], octets [4][64]
//   Q6_K  256 inputs   d [64], scales [16][64] int8                16 groups of 16: bits [64], octets [2][64]
//
// Words and octets have 32 bits: four codes of 8 bits, or eight of 4, those of inputs 4..7 in the high nibbles. The words of
// `fields` have five fields of 6 bits each, scales and then minimums of eight groups; the sixteenth is in their last two bits.
// `bits` has the higher bits of a group: bit 8 * b + j (Q6_K: two bits at 8 * b + 2 * j) is that of input 4 * j + b.
#pragma once
#include "blocks/parameters.h"
#include "gemm/gemm.h"

constexpr int SLICE_INPUTS = 256;  // at most, of blocks that are multiplied together
constexpr int MOST_GROUPS = 16;    // of a slice
constexpr size_t HALF_LINE = PANEL * 2, WORD_LINE = STEP_BYTES;

// The scales of the groups of a slice.
struct SliceScales {
  alignas(64) float scale[MOST_GROUPS][PANEL];
  alignas(64) float least[MOST_GROUPS / 2][PANEL];
};

// Codes below 128 as the weights of a dot.
template <class Weights = Int8::Weights> inline Weights small_codes(I32 bytes) {
  if constexpr (std::is_same_v<Weights, I32>) return bytes;
  else return {bytes & 0x00ff00ff, (bytes >> 8) & 0x00ff00ff};
}

inline I32 nibbles(const char* lanes, int j) {  // of word j of a group
  const I32 octet = load_words(lanes + j / 2 * STEP_BYTES);
  return (j % 2 ? octet >> 4 : octet) & 0x0f0f0f0f;
}

inline I32 shifted(I32 x, int by) { return by < 0 ? x >> -by : x << by; }

// Common to all formats:
//   BLOCK, BLOCK_BYTES   inputs and bytes of a block in a file
//   GROUP, CENTRE        inputs of a group, and what the dots add to a code
//   OneRow, Rows         what multiplies one row, and several
//   HAS_LEAST            whether there are minimums
//   HEADER, GROUP_BYTES  of a panel's block: bytes before the codes, bytes of a group's codes
//   IS_EXPANDED          whether the codes are bytes
//   word(lanes, j)       word j of a group's codes, as weights of Int8;  bytes(lanes, j): as bytes, of SmallCodes
//   scales(to, g, block) a block's scales, from group g of a slice on
struct Q8_0 {
  using OneRow = Int8;
  using Rows = WideInt8;
  static constexpr int BLOCK = 32, BLOCK_BYTES = 34, GROUP = 32, CENTRE = Int8::OFFSET;
  static constexpr bool HAS_LEAST = false, IS_EXPANDED = true;
  static constexpr size_t HEADER = HALF_LINE, GROUP_BYTES = 8 * WORD_LINE;
  static Int8::Weights word(const char* lanes, int j) { return Int8::weights(lanes + j * STEP_BYTES); }
  static void scales(SliceScales& to, int g, const char* block) {
    EACH(v, PANEL_VECTORS) store(to.scale[g] + v * LANES, load_fp16(block + v * LANES * 2));
  }
};

// The fields of Q4_K and Q5_K.
inline void scales_and_minimums(SliceScales& to, const char* block) {
  EACH(v, PANEL_VECTORS) {
    const F32 d = load_fp16(block + v * LANES * 2), least = load_fp16(block + HALF_LINE + v * LANES * 2);
    I32 words[3];
    EACH(i, 3) words[i] = load_words(block + 2 * HALF_LINE + i * WORD_LINE + v * sizeof(I32));
    const I32 last = ((words[0] >> 30) & 3) | ((words[1] >> 28) & 12) | ((words[2] >> 26) & 48);
    const auto field = [&](int i) { return to_float(i == 15 ? last : (words[i / 5] >> (i % 5 * 6)) & 63); };
    EACH(g, 8) {
      store(to.scale[g] + v * LANES, d * field(g));
      store(to.least[g] + v * LANES, least * field(8 + g));
    }
  }
}

struct Q4_K {
  using OneRow = SmallCodes<15>;
  using Rows = OneRow;
  static constexpr int BLOCK = 256, BLOCK_BYTES = 144, GROUP = 32, CENTRE = 0;
  static constexpr bool HAS_LEAST = true, IS_EXPANDED = false;
  static constexpr size_t HEADER = 2 * HALF_LINE + 3 * WORD_LINE, GROUP_BYTES = 4 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) { return nibbles(lanes, j); }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
  static void scales(SliceScales& to, int, const char* block) { scales_and_minimums(to, block); }
};

struct Q5_K {
  using OneRow = SmallCodes<31>;
  using Rows = OneRow;
  static constexpr int BLOCK = 256, BLOCK_BYTES = 176, GROUP = 32, CENTRE = 0;
  static constexpr bool HAS_LEAST = true, IS_EXPANDED = false;
  static constexpr size_t HEADER = 2 * HALF_LINE + 3 * WORD_LINE, GROUP_BYTES = 5 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) {
    return nibbles(lanes + WORD_LINE, j) | (shifted(load_words(lanes), 4 - j) & 0x10101010);
  }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
  static void scales(SliceScales& to, int, const char* block) { scales_and_minimums(to, block); }
};

struct Q6_K {
  using OneRow = SmallCodes<63>;
  using Rows = OneRow;
  static constexpr int BLOCK = 256, BLOCK_BYTES = 210, GROUP = 16, CENTRE = 32;
  static constexpr bool HAS_LEAST = false, IS_EXPANDED = false;
  static constexpr size_t HEADER = HALF_LINE + 16 * PANEL, GROUP_BYTES = 3 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) {
    return nibbles(lanes + WORD_LINE, j) | (shifted(load_words(lanes), 4 - 2 * j) & 0x30303030);
  }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
  static void scales(SliceScales& to, int, const char* block) {
    EACH(v, PANEL_VECTORS) {
      const F32 d = load_fp16(block + v * LANES * 2);
      for (int g = 0; g < 16; g++) store(to.scale[g] + v * LANES, d * load_s8(block + HALF_LINE + g * PANEL + v * LANES));
    }
  }
};

// The codes of the last three as bytes, in the layout that expand_slice writes.
template <class Format> struct Expanded {
  static constexpr size_t GROUP_BYTES = Format::GROUP / 4 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) { return load_words(lanes + j * STEP_BYTES); }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

template <class Format> constexpr int GROUPS_PER_BLOCK = Format::BLOCK / Format::GROUP;
template <class Format> constexpr size_t PANEL_BLOCK_BYTES = (size_t)PANEL * Format::BLOCK_BYTES;
template <class Format> constexpr int SLICE_BLOCKS = SLICE_INPUTS / Format::BLOCK;

template <class Format> constexpr bool fills_its_bytes() {
  return Format::HEADER + GROUPS_PER_BLOCK<Format> * Format::GROUP_BYTES == PANEL_BLOCK_BYTES<Format>;
}
static_assert(fills_its_bytes<Q8_0>() && fills_its_bytes<Q4_K>() && fills_its_bytes<Q5_K>() && fills_its_bytes<Q6_K>());

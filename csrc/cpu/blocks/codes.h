// The codes of some inputs in a panel of formats.h, and in registers:
//   INPUTS, BYTES   how many: a group, or two that share words; AFTER: bytes of what all of a block share, after them
//   MOST            the highest code
//   IS_JOINED       if true, words are of two and take as many registers that sums need
//   word(lanes, j)  word j of them, as weights of Int8;  bytes(lanes, j): as four bytes, which SmallCodes multiplies
//
// Words, octets and pairs have 32 bits: four codes of 8 bits, eight of 4, or sixteen of 2; code 4 * j + b is at bit 8 * b, or
// in octets at 8 * b + 4 if j is odd, of octet j / 2, and in pairs at 8 * b + 2 * (j % 4). `bits` has the higher bits: bit
// 8 * b + j is that of code 4 * j + b (Q6_K: two bits at 8 * b + 2 * j).
#pragma once
#include <algorithm>
#include <type_traits>

#include "blocks/parameters.h"
#include "gemm/gemm.h"

constexpr size_t WORD_LINE = STEP_BYTES;

// Codes below 128, which are multiplied as they are, as the weights of a dot.
template <class Weights = Int8::Weights> inline Weights small_codes(I32 bytes) {
  if constexpr (std::is_same_v<Weights, I32>) return bytes;
  else return {bytes & 0x00ff00ff, (bytes >> 8) & 0x00ff00ff};
}

inline I32 shifted(I32 x, int by) { return by < 0 ? x >> -by : x << by; }

struct Bytes {
  static constexpr int INPUTS = 32, MOST = 255;
  static constexpr size_t BYTES = 8 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) { return load_words(lanes + j * STEP_BYTES); }
  static Int8::Weights word(const char* lanes, int j) { return Int8::weights(lanes + j * STEP_BYTES); }
};

template <int COUNT, int HIGH> struct Octets {  // with HIGH higher bits
  static constexpr int INPUTS = COUNT, MOST = (16 << HIGH) - 1;
  static constexpr size_t FIRST = HIGH ? WORD_LINE : 0, BYTES = FIRST + COUNT / 8 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) {
    const I32 octet = load_words(lanes + FIRST + j / 2 * STEP_BYTES), low = (j % 2 ? octet >> 4 : octet) & 0x0f0f0f0f;
    if constexpr (HIGH == 0) return low;
    else return low | (shifted(load_words(lanes), 4 - HIGH * j) & ((1 << HIGH) - 1) * 0x10101010);
  }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

inline I32 pairs(const char* lanes, int j) { return (load_words(lanes + j / 4 * STEP_BYTES) >> (j % 4 * 2)) & 0x03030303; }

template <int COUNT, int HIGH> struct Pairs {  // with HIGH higher bits
  static constexpr int INPUTS = COUNT, MOST = (4 << HIGH) - 1;
  static constexpr bool IS_JOINED = HIGH > 0;
  static constexpr size_t FIRST = HIGH ? WORD_LINE : 0, BYTES = FIRST + COUNT / 16 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) {
    const I32 low = pairs(lanes + FIRST, j);
    if constexpr (HIGH == 0) return low;
    else return low | (shifted(load_words(lanes), 2 - j) & 0x04040404);
  }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

// Codes of 0, 8 or 16, and two more if a bit is set, which eight inputs share: bit 2 * g + j / 2 of a word for all groups.
struct PairsAndSigns {
  static constexpr int INPUTS = 16, MOST = 18;
  static constexpr size_t BYTES = WORD_LINE, SIGNS = 16 * WORD_LINE, AFTER = WORD_LINE;
  static I32 bytes_of_block(const char* block, int g, int j) {
    const I32 sign = (load_words(block + SIGNS) >> (2 * g + j / 2)) & 1;
    return (shifted(load_words(block + g * BYTES), 3 - 2 * j) & 0x18181818) | (-sign & 0x02020202);
  }
};

struct OddNumbers {  // the octets' codes, doubled
  static constexpr int INPUTS = 32, MOST = 30;
  static constexpr size_t BYTES = Octets<32, 0>::BYTES;
  static I32 bytes(const char* lanes, int j) { return shifted(load_words(lanes + j / 2 * STEP_BYTES), j % 2 ? -3 : 1) & 0x1e1e1e1e; }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

// Numbers of a table, plus the format's centre. Codes that do not occur stand for 0.
struct Iq4Table {
  static constexpr uint8_t NUMBERS[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
};
struct Iq2Table {  // 8, 25, 43, and their negatives
  static constexpr uint8_t NUMBERS[16] = {51, 68, 86, 43, 35, 18, 0, 43, 43, 43, 43, 43, 43, 43, 43, 43};
};
struct Iq3Table {  // 2, 6, 10, 14, 18, 22, 26, 31, and their negatives
  static constexpr uint8_t NUMBERS[16] = {33, 37, 41, 45, 49, 53, 57, 62, 29, 25, 21, 17, 13, 9, 5, 0};
};

template <class Places, class Table> struct LookedUp {
  static constexpr int INPUTS = Places::INPUTS, MOST = *std::max_element(Table::NUMBERS, Table::NUMBERS + 16);
  static constexpr bool IS_JOINED = requires { requires Places::IS_JOINED; };
  static constexpr size_t BYTES = Places::BYTES;
  static I32 bytes(const char* lanes, int j) { return look_up(Table::NUMBERS, Places::bytes(lanes, j)); }
  static Int8::Weights word(const char* lanes, int j) {
    if constexpr (MOST < 128) return small_codes(bytes(lanes, j));
    else return Int8::weights(bytes(lanes, j));
  }
};

// Word j from word FIRST on.
template <class Codes, int FIRST> struct Later {
  static I32 bytes(const char* lanes, int j) { return Codes::bytes(lanes, FIRST + j); }
  static Int8::Weights word(const char* lanes, int j) { return Codes::word(lanes, FIRST + j); }
};

// Word j of a block's codes from the `unit`th INPUTS on, as bytes.
template <class Codes> inline I32 bytes_of(const char* block, int unit, int j) {
  if constexpr (requires { Codes::bytes_of_block(block, unit, j); }) return Codes::bytes_of_block(block, unit, j);
  else return Codes::bytes(block + unit * Codes::BYTES, j);
}

// The others as bytes.
template <int GROUP> struct Expanded {
  static constexpr int INPUTS = GROUP;
  static constexpr size_t BYTES = GROUP / 4 * WORD_LINE;
  static I32 bytes(const char* lanes, int j) { return load_words(lanes + j * STEP_BYTES); }
  static Int8::Weights word(const char* lanes, int j) { return small_codes(bytes(lanes, j)); }
};

// Writes an output's codes and numbers to their places in a panel's block.
#pragma once
#include "blocks/grid_formats.h"

constexpr int BLOCK = 256;  // inputs of a block of most formats

inline uint8_t* at(char* p, size_t offset) { return (uint8_t*)p + offset; }

inline void put_half(char* panel, size_t line, int output, const uint8_t* half) { std::memcpy(panel + line + output * 2, half, 2); }

inline void put_word(char* panel, size_t line, int output, uint32_t word) {
  std::memcpy(panel + line + output * WORD_BYTES, &word, sizeof word);
}

// `count` codes of one group below 16 * 2^width: their nibbles as octets, and `width` higher bits in a word before these.
inline void put_group(char* group, int output, const uint8_t* codes, int count, int width) {
  if (width) {
    uint32_t bits = 0;
    for (int i = 0; i < count; i++) bits |= (uint32_t)(codes[i] >> 4) << (8 * (i % 4) + width * (i / 4));
    put_word(group, 0, output, bits);
    group += WORD_LINE;
  }
  for (int octet = 0; octet < count / 8; octet++, codes += 8) {
    uint32_t word = 0;
    for (int b = 0; b < 4; b++) word |= (uint32_t)((codes[b] & 15) | (codes[4 + b] & 15) << 4) << (8 * b);
    put_word(group, octet * WORD_LINE, output, word);
  }
}

template <class Format> void put_groups(char* panel, int output, const uint8_t* codes, int width) {
  for (int g = 0; g < GROUPS_PER_BLOCK<Format>; g++)
    put_group(panel + Format::HEADER + g * Format::Codes::BYTES, output, codes + g * Format::GROUP, Format::GROUP, width);
}

inline void put_fields(char* fields, int output, const uint8_t (&field)[16]) {
  for (int w = 0; w < 3; w++) {
    uint32_t word = (uint32_t)(field[15] >> (2 * w) & 3) << 30;
    for (int i = 0; i < 5; i++) word |= (uint32_t)field[5 * w + i] << (6 * i);
    put_word(fields, w * WORD_LINE, output, word);
  }
}

// The same codes of two bits each.
inline uint32_t pairs_of(const uint8_t* codes) {
  uint32_t word = 0;
  for (int i = 0; i < 16; i++) word |= (uint32_t)(codes[i] & 3) << (8 * (i % 4) + 2 * (i / 4));
  return word;
}

// Bit 2 of each of 32 codes.
inline uint32_t bits_of(const uint8_t* codes) {
  uint32_t word = 0;
  for (int i = 0; i < 32; i++) word |= (uint32_t)(codes[i] >> 2 & 1) << (8 * (i % 4) + i / 4);
  return word;
}

// The pairs of a block's codes, and their higher bits if there are any.
template <class Format> void put_pairs(char* panel, int output, const uint8_t* codes) {
  using Codes = typename Format::Codes;
  constexpr size_t FIRST = Codes::BYTES - Codes::INPUTS / 16 * WORD_LINE;
  char* unit = panel + Format::HEADER;
  for (int i = 0; i < BLOCK; i += Codes::INPUTS, unit += Codes::BYTES) {
    if constexpr (FIRST) put_word(unit, 0, output, bits_of(codes + i));
    for (int word = 0; word < Codes::INPUTS / 16; word++) put_word(unit, FIRST + word * WORD_LINE, output, pairs_of(codes + i + 16 * word));
  }
}

// Numbers below 16, eight in a word.
inline void put_nibbles(char* lines, int output, const uint8_t* numbers, int count) {
  for (int w = 0; w < count / 8; w++) {
    uint32_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint32_t)numbers[8 * w + i] << (4 * i);
    put_word(lines, w * WORD_LINE, output, word);
  }
}

// pack_blocks: rows of blocks of a GGUF file to the panels of formats.h; every bit of a block is kept.
//
// Algorithm  a block's codes and scales are unpacked to bytes, and put at their places in the panel's block, which stays in
//            the first-level cache for its 64 outputs. Layouts in files are those of ggml-common.h
// Shapes     parts [count], rows of blocks of any stride;  panels: formats.h; outputs past the last have scales of zero
// Tile       a block of 64 outputs; threads divide the panels into the same spans as the products
// Floor      2 * bytes of blocks / (read and write bandwidth)
#include "blocks/formats.h"
#include "weights/stored_elements.h"

namespace {

constexpr int BLOCK = 256;  // inputs of a block of a K-quant

uint8_t* at(char* p, size_t offset) { return (uint8_t*)p + offset; }

void put_half(char* panel, size_t line, int output, const uint8_t* half) { std::memcpy(panel + line + output * 2, half, 2); }

void put_word(char* panel, size_t line, int output, uint32_t word) {
  std::memcpy(panel + line + output * WORD_BYTES, &word, sizeof word);
}

// `count` codes of one group below 16 * 2^width: their nibbles as octets, and `width` higher bits in a word before these.
void put_group(char* group, int output, const uint8_t* codes, int count, int width) {
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

void put_fields(char* fields, int output, const uint8_t (&field)[16]) {
  for (int w = 0; w < 3; w++) {
    uint32_t word = (uint32_t)(field[15] >> (2 * w) & 3) << 30;
    for (int i = 0; i < 5; i++) word |= (uint32_t)field[5 * w + i] << (6 * i);
    put_word(fields, w * WORD_LINE, output, word);
  }
}

// The same codes of two bits each.
uint32_t pairs_of(const uint8_t* codes) {
  uint32_t word = 0;
  for (int i = 0; i < 16; i++) word |= (uint32_t)(codes[i] & 3) << (8 * (i % 4) + 2 * (i / 4));
  return word;
}

// d, dmin, and twelve bytes of 6-bit scales and minimums: the first four of each in the low bits of bytes 0-3 and 4-7, the
// others in nibbles of bytes 8-11, with their highest bits above the first ones.
void put_scales_and_minimums(char* panel, int output, const uint8_t* block) {
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
void read_nibbles(uint8_t* codes, const uint8_t* packed) {
  for (int i = 0; i < BLOCK; i++) codes[i] = packed[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
}

// Codes of two bits of 128 inputs in 32 bytes, the lowest ones first.
void read_pairs(uint8_t* codes, const uint8_t* packed) {
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
    for (int i = 0; i < 16; i++) {
      *at(panel, 2 * HALF_LINE + i / 4 * WORD_LINE + output * WORD_BYTES + i % 4) = block[i];
      put_word(panel, Q2_K::HEADER + i * WORD_LINE, output, pairs_of(codes + 16 * i));
    }
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
    char* groups = panel + Q3_K::HEADER;
    for (int g = 0; g < 16; g++) put_word(groups, g * WORD_LINE, output, pairs_of(codes + 16 * g));
    for (int g = 0; g < 8; g++) {
      uint32_t bits = 0;
      for (int i = 0; i < 32; i++) bits |= (uint32_t)(block[i] >> g & 1) << (8 * (i % 4) + i / 4);
      put_word(groups, PairsAndBits::BITS + g * WORD_LINE, output, bits);
    }
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

// The rows of one panel's outputs; null past the last output.
void find_rows(const PackParams& p, int panel, const uint8_t* (&rows)[PANEL]) {
  int64_t first = 0;  // output of a part
  for (int part = 0; part < p.count; first += p.parts[part++].outputs) {
    const PackPart& from = p.parts[part];
    const int64_t begin = std::max<int64_t>(first, (int64_t)panel * PANEL);
    const int64_t end = std::min<int64_t>(first + from.outputs, (int64_t)(panel + 1) * PANEL);
    for (int64_t output = begin; output < end; output++)
      rows[output % PANEL] = (const uint8_t*)from.rows + (output - first) * from.stride;
  }
}

template <class Format> bool is_finite(const uint8_t* block) {
  for (const int half : Source<Format>::HALVES) {
    uint16_t bits;
    std::memcpy(&bits, block + half, sizeof bits);
    if ((bits & Fp16Element::EXPONENT) == Fp16Element::EXPONENT) return false;
  }
  return true;
}

template <class Format> void pack_panel(const PackParams& p, int panel) {
  const uint8_t* rows[PANEL] = {};
  find_rows(p, panel, rows);
  const int blocks = p.inputs / Format::BLOCK;
  char* out = (char*)p.panels + (size_t)panel * blocks * PANEL_BLOCK_BYTES<Format>;
  bool finite = true;
  for (int b = 0; b < blocks; b++, out += PANEL_BLOCK_BYTES<Format>)
    for (int output = 0; output < PANEL; output++) {
      static constexpr uint8_t EMPTY[Format::BLOCK_BYTES] = {};
      const uint8_t* block = rows[output] ? rows[output] + (size_t)b * Format::BLOCK_BYTES : EMPTY;
      finite &= is_finite<Format>(block);
      Source<Format>::put(out, output, block);
    }
  if (!finite) __atomic_store_n(p.not_finite, 1, __ATOMIC_RELAXED);
}

template <class Format> void pack(Pool* pool, const PackParams& p) {
  pool->run_spans(ceil_div(p.outputs, PANEL), 1, [&](int begin, int end) {
    for (int panel = begin; panel < end; panel++) pack_panel<Format>(p, panel);
  });
}

}  // namespace

void pack_blocks(Pool* pool, const PackParams* p) {
  switch (p->element) {
    case BLOCKS_Q8_0: return pack<Q8_0>(pool, *p);
    case BLOCKS_Q4_0: return pack<Q4_0>(pool, *p);
    case BLOCKS_Q4_1: return pack<Q4_1>(pool, *p);
    case BLOCKS_Q5_0: return pack<Q5_0>(pool, *p);
    case BLOCKS_Q5_1: return pack<Q5_1>(pool, *p);
    case BLOCKS_IQ4_NL: return pack<IQ4_NL>(pool, *p);
    case BLOCKS_IQ4_XS: return pack<IQ4_XS>(pool, *p);
    case BLOCKS_Q2_K: return pack<Q2_K>(pool, *p);
    case BLOCKS_Q3_K: return pack<Q3_K>(pool, *p);
    case BLOCKS_Q4_K: return pack<Q4_K>(pool, *p);
    case BLOCKS_Q5_K: return pack<Q5_K>(pool, *p);
    default: return pack<Q6_K>(pool, *p);
  }
}

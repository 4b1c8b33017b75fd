// pack: converts a checkpoint's weights [outputs, inputs] to the panels that the products read, see tile.h.
//
// Algorithm  a panel's 64 outputs are packed one block of words after another: rows are read, rounded to the panel's format,
//            and transposed in the first-level cache. Rows may come from several stacked matrices.
// Shapes     parts [count], rows of any stride;  panels [ceil(outputs / 64)][words][64] words, see gemm.cpp and
//            gemm/int4/int4.cpp; elements past an edge stand for zero
// Tile       64 outputs x 64 words; threads divide the panels into the same spans as the products, so that a page is first
//            touched by a thread of the NUMA node that will read it
// Floor      source bytes / read bandwidth + packed bytes / write bandwidth
#include <algorithm>

#include "api.h"
#include "weights/stored_elements.h"
#include "pool.h"
#include "tiles/tile.h"

namespace {

constexpr int BLOCK = 64;  // words of an output that are transposed together
using Words = int32_t[PANEL][BLOCK];
using Quad = int32_t __attribute__((vector_size(16)));

Quad quad_at(const int32_t* p) {
  Quad quad;
  std::memcpy(&quad, p, sizeof quad);
  return quad;
}

// The first `count` words of each row, word k of all rows to `to(k)`.
template <class To> void transpose(const Words& words, int count, To&& to) {
  for (int k = 0; k < count; k += 4) {
    char* at[4] = {};
    const int there = std::min(4, count - k);
    for (int j = 0; j < there; j++) at[j] = to(k + j);
    for (int row = 0; row < PANEL; row += 4) {
      const Quad a = quad_at(words[row] + k), b = quad_at(words[row + 1] + k);
      const Quad c = quad_at(words[row + 2] + k), d = quad_at(words[row + 3] + k);
      const Quad low = Quad{0, 4, 1, 5}, high = Quad{2, 6, 3, 7};
      const Quad ab = __builtin_shuffle(a, b, low), cd = __builtin_shuffle(c, d, low);
      const Quad ab_high = __builtin_shuffle(a, b, high), cd_high = __builtin_shuffle(c, d, high);
      const Quad first = Quad{0, 1, 4, 5}, second = Quad{2, 3, 6, 7};
      const Quad out[4] = {__builtin_shuffle(ab, cd, first), __builtin_shuffle(ab, cd, second),
                           __builtin_shuffle(ab_high, cd_high, first), __builtin_shuffle(ab_high, cd_high, second)};
      for (int j = 0; j < there; j++) std::memcpy(at[j] + row * WORD_BYTES, &out[j], sizeof out[j]);
    }
  }
}

// The source rows of one panel's outputs; null past the last output.
struct Rows {
  const char* at[PANEL] = {};
  int32_t element[PANEL] = {};

  Rows(const PackParams& p, int panel) {
    int64_t first = 0;  // output of a part
    for (int part = 0; part < p.count; first += p.parts[part++].outputs) {
      const PackPart& from = p.parts[part];
      const int64_t begin = std::max<int64_t>(first, (int64_t)panel * PANEL);
      const int64_t end = std::min<int64_t>(first + from.outputs, (int64_t)(panel + 1) * PANEL);
      for (int64_t output = begin; output < end; output++) {
        at[output % PANEL] = (const char*)from.rows + (output - first) * from.stride * bytes_of(from.element);
        element[output % PANEL] = from.element;
      }
    }
  }
};

// The order of an output's elements in its words: that of the inputs.
template <class From, class To> void arrange(int32_t* words, const char* row, int64_t first, int count) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(words, row + first * sizeof(typename To::Bits), count * sizeof(typename To::Bits));
  } else {
    const auto out = (char*)words;
    for (int i = 0; i < count; i++) {
      const typename To::Bits bits = To::rounded(element_at<From>(row, first + i));
      std::memcpy(out + i * sizeof bits, &bits, sizeof bits);
    }
  }
}

template <class To> void arrange_from(int32_t* words, const char* row, int32_t element, int64_t first, int count) {
  switch (element) {
    case BF16_ELEMENT: return arrange<Bf16Element, To>(words, row, first, count);
    case FP16_ELEMENT: return arrange<Fp16Element, To>(words, row, first, count);
    default: return arrange<Fp32Element, To>(words, row, first, count);
  }
}

// Codes become unsigned, code + 128; elements past an edge have code 0, too.
struct Int8Codes {
  using Bits = int8_t;
};
template <> void arrange_from<Int8Codes>(int32_t* words, const char* row, int32_t, int64_t first, int count) {
  for (int i = 0; i < count; i++) ((char*)words)[i] = row[first + i] ^ (char)0x80;
}

// A step of float16: the odd inputs of 16 words, then the even ones, see tile.h.
void take_apart(char* step) {
  constexpr int GROUP = 16;  // outputs
  uint16_t halves[2 * GROUP], apart[2 * GROUP];
  for (char* at = step; at < step + STEP_BYTES; at += sizeof halves) {
    std::memcpy(halves, at, sizeof halves);
    for (int i = 0; i < GROUP; i++) apart[i] = halves[2 * i + 1], apart[GROUP + i] = halves[2 * i];
    std::memcpy(at, apart, sizeof apart);
  }
}

// Whether all elements of a block are finite; called while it is in the first-level cache.
template <class To> bool is_finite(const Words& block) {
  if constexpr (!std::is_same_v<To, Int8Codes>) {
    typedef typename To::Bits Lanes __attribute__((vector_size(32)));
    const char* const bytes = (const char*)block;
    Lanes found = {};
    for (size_t at = 0; at < sizeof block; at += sizeof found) {
      Lanes lanes;
      std::memcpy(&lanes, bytes + at, sizeof lanes);
      found |= (Lanes)((lanes & To::EXPONENT) == To::EXPONENT);
    }
    uint64_t words[sizeof found / sizeof(uint64_t)], any = 0;
    std::memcpy(words, &found, sizeof found);
    for (const uint64_t word : words) any |= word;
    return any == 0;
  }
  return true;
}

template <class To> void pack_panel(const PackParams& p, int panel) {
  constexpr int PER_WORD = WORD_BYTES / sizeof(typename To::Bits);
  constexpr int EMPTY = std::is_same_v<To, Int8Codes> ? 0x80 : 0;
  const Rows rows(p, panel);
  const int words = (p.inputs + PER_WORD - 1) / PER_WORD;
  char* const out = (char*)p.panels + (size_t)panel * words * STEP_BYTES;
  alignas(64) Words block = {};  // the rest beyond a short block was checked before, or is zero
  for (int from = 0; from < words; from += BLOCK) {
    const int count = std::min(BLOCK, words - from), inputs = std::min(count * PER_WORD, p.inputs - from * PER_WORD);
    for (int row = 0; row < PANEL; row++) {
      if (!rows.at[row] || inputs < count * PER_WORD) std::memset(block[row], EMPTY, sizeof block[row]);
      if (rows.at[row]) arrange_from<To>(block[row], rows.at[row], rows.element[row], (int64_t)from * PER_WORD, inputs);
    }
    if (!is_finite<To>(block)) __atomic_store_n(p.not_finite, 1, __ATOMIC_RELAXED);
    transpose(block, count, [&](int k) { return out + (size_t)(from + k) * STEP_BYTES; });
    if constexpr (std::is_same_v<To, Fp16Element>)
      for (int k = 0; k < count; k++) take_apart(out + (size_t)(from + k) * STEP_BYTES);
  }
}

// Packs eight codes below 16 into a word of nibbles, in the order that gemm/int4/int4.cpp describes.
int32_t octet_word(const char* codes) {
  uint64_t octet;
  std::memcpy(&octet, codes, sizeof octet);
  const uint64_t pairs = octet | octet >> 12;  // byte i: code i, and above it code i + 2
  const uint32_t low = (uint32_t)pairs, high = (uint32_t)(pairs >> 32);
  return (int32_t)((low & 0xff) | (high & 0xff) << 8 | (low & 0xff00) << 8 | (high & 0xff00) << 16);
}

// The scales and zero points before each group's codes.
void pack_headers(const PackInt4Params& p, char* panel, int outputs, int64_t first, int groups, size_t group_bytes) {
  for (int g = 0; g < groups; g++, panel += group_bytes)
    for (int n = 0; n < PANEL; n++) {
      const int64_t from = (first + n) * groups + g;
      const uint16_t scale = n < outputs ? p.scales[from] : 0;
      std::memcpy(panel + n * 2, &scale, sizeof scale);
      if (p.zeros) panel[PANEL * 2 + n] = n < outputs ? (char)p.zeros[from] : 0;
    }
}

void pack_int4_panel(const PackInt4Params& p, int panel) {
  constexpr int OCTET = 8;
  const int groups = p.inputs / p.group_size, octets = p.group_size / OCTET, words = p.inputs / OCTET;
  const size_t header = PANEL * (p.zeros ? 3 : 2), group_bytes = header + octets * STEP_BYTES;
  const int64_t first = (int64_t)panel * PANEL;
  const int outputs = (int)std::min<int64_t>(PANEL, p.outputs - first);
  char* const out = (char*)p.panels + panel * groups * group_bytes;
  pack_headers(p, out, outputs, first, groups, group_bytes);
  alignas(64) Words block = {};
  for (int from = 0; from < words; from += BLOCK) {
    const int count = std::min(BLOCK, words - from);
    for (int row = 0; row < outputs; row++) {
      const char* codes = (const char*)p.codes + (first + row) * p.stride + (int64_t)from * OCTET;
      for (int k = 0; k < count; k++) block[row][k] = octet_word(codes + k * OCTET);
    }
    transpose(block, count, [&](int k) {
      const int word = from + k;
      return out + word / octets * group_bytes + header + word % octets * STEP_BYTES;
    });
  }
}

template <class One> void each_panel(Pool* pool, int outputs, One&& one) {
  pool->run_spans((outputs + PANEL - 1) / PANEL, 1, [&](int begin, int end) {
    for (int panel = begin; panel < end; panel++) one(panel);
  });
}

}  // namespace

void pack_rows(Pool* pool, const PackParams* p) {
  each_panel(pool, p->outputs, [&](int panel) {
    switch (p->element) {
      case BF16_ELEMENT: return pack_panel<Bf16Element>(*p, panel);
      case FP16_ELEMENT: return pack_panel<Fp16Element>(*p, panel);
      case FP32_ELEMENT: return pack_panel<Fp32Element>(*p, panel);
      default: return pack_panel<Int8Codes>(*p, panel);
    }
  });
}

void pack_int4(Pool* pool, const PackInt4Params* p) {
  each_panel(pool, p->outputs, [&](int panel) { pack_int4_panel(*p, panel); });
}

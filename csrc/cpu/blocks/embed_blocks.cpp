// embed_q8_0, embed_q4_k, embed_q5_k, embed_q6_k: rows of a packed table, dequantized, times a number.
//
// Algorithm  scale * code - least in float, each operation rounded, as the gguf package does; then times the multiplier, and
//            rounded to y's type. The bytes of an output are collected from its panel one by one
// Shapes     ids [rows] int64;  table: panels as in formats.h;  y [rows, inputs] bfloat16, float16 or float
// Tile       one row of y; threads divide the rows
// Floor      a cache line per word of a row; negligible beside the products of the same token
#include <memory>

#include "blocks/formats.h"

namespace {

uint32_t word(const char* line, int output) {
  uint32_t found;
  std::memcpy(&found, line + output * WORD_BYTES, sizeof found);
  return found;
}

float half(const char* line, int output) { return get((const Float16*)line + output, 1)[0]; }

// Code `i` of a group with `width` higher bits.
int code_of(const char* group, int output, int i, int width) {
  const char* octets = group + (width ? WORD_LINE : 0);
  const uint32_t low = word(octets + i / 8 * WORD_LINE, output) >> (8 * (i % 4) + i % 8 / 4 * 4) & 15;
  const uint32_t high = width ? word(group, output) >> (8 * (i % 4) + width * (i / 4)) & ((1u << width) - 1) : 0;
  return (int)(low | high << 4);
}

template <class Format> constexpr int WIDTH = 0;  // of the higher bits
template <> constexpr int WIDTH<Q5_K> = 1;
template <> constexpr int WIDTH<Q6_K> = 2;

// The values of one output's block, from a panel's block.
template <class Format> void read_block(const char* block, int output, float* values) {
  for (int i = 0; i < Format::BLOCK; i++) {
    const int g = i / Format::GROUP, within = i % Format::GROUP;
    const char* group = block + Format::HEADER + g * Format::GROUP_BYTES;
    if constexpr (Format::IS_EXPANDED) {
      values[i] = (float)(int8_t)(word(group + within / 4 * WORD_LINE, output) >> (8 * (within % 4)) ^ 0x80) * half(block, output);
    } else if constexpr (Format::HAS_LEAST) {
      uint32_t words[3];
      for (int w = 0; w < 3; w++) words[w] = word(block + 2 * HALF_LINE + w * WORD_LINE, output);
      const auto field = [&](int f) {
        return (float)(f == 15 ? words[0] >> 30 | words[1] >> 30 << 2 | words[2] >> 30 << 4 : words[f / 5] >> (f % 5 * 6) & 63);
      };
      const float scale = half(block, output) * field(g), least = half(block + HALF_LINE, output) * field(8 + g);
      values[i] = scale * (float)code_of(group, output, within, WIDTH<Format>) - least;
    } else {
      const float scale = half(block, output) * (float)(int8_t)block[HALF_LINE + g * PANEL + output];
      values[i] = scale * (float)(code_of(group, output, within, WIDTH<Format>) - Format::CENTRE);
    }
  }
}

template <class Format> void embed(Pool* pool, const EmbedParams& p) {
  const int blocks = p.inputs / Format::BLOCK;
  pool->run(p.rows, std::max(1, p.rows / (4 * pool->size())), [&](int begin, int end) {
    const auto row = std::make_unique<float[]>(p.inputs);
    for (int m = begin; m < end; m++) {
      const int64_t id = p.ids[m];
      std::fill_n(row.get(), p.inputs, 0.0f);
      if (id >= 0 && id < p.outputs)
        for (int b = 0; b < blocks; b++) {
          const char* panel = (const char*)p.table + (id / PANEL * blocks + b) * PANEL_BLOCK_BYTES<Format>;
          read_block<Format>(panel, (int)(id % PANEL), row.get() + b * Format::BLOCK);
        }
      with_element(p.y_dtype, [&](auto element) {
        auto* y = (decltype(element)*)p.y + m * p.y_stride;
        for (int i = 0; i < p.inputs; i += LANES) put(y + i, load(row.get() + i) * p.multiplier, LANES);
      });
    }
  });
}

}  // namespace

void embed_q8_0(Pool* pool, const EmbedParams* p) { embed<Q8_0>(pool, *p); }
void embed_q4_k(Pool* pool, const EmbedParams* p) { embed<Q4_K>(pool, *p); }
void embed_q5_k(Pool* pool, const EmbedParams* p) { embed<Q5_K>(pool, *p); }
void embed_q6_k(Pool* pool, const EmbedParams* p) { embed<Q6_K>(pool, *p); }

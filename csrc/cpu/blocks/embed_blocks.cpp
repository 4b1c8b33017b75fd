// embed_q8_0, embed_q4_0, ..., embed_tq2_0: rows of a packed table, dequantized, times a number.
//
// Algorithm  scale * (code - centre) - least in float, each operation rounded, as the gguf package does; then times the
//            multiplier, and rounded to y's type. Scales are computed for all outputs of a panel's block
// Shapes     ids [rows] int64;  table: panels as in formats.h and grid_formats.h;  y [rows, inputs] bfloat16, float16 or float
// Tile       one row of y; threads divide the rows
// Floor      a cache line per word of a row; negligible beside the products of the same token
#include <memory>

#include "blocks/grid_formats.h"

namespace {

// The values of one output's block, from a panel's block.
template <class Format> void read_block(const char* block, int output, float* values) {
  using Codes = typename Format::Codes;
  constexpr int CENTRE = Codes::MOST < 128 ? Format::CENTRE : 128;
  const char* lanes = block + Format::HEADER + output / LANES * sizeof(I32);
  SliceScales<Format> scales;
  Format::scales(scales, 0, block);
  for (int i = 0; i < Format::BLOCK; i++) {
    const int g = i / Format::GROUP;
    const auto word = (uint32_t)bytes_of<Codes>(lanes, i / Codes::INPUTS, i % Codes::INPUTS / 4)[output % LANES];
    values[i] = scales.scale[g][output] * (float)((int)(word >> (8 * (i % 4)) & 255) - CENTRE);
    if constexpr (Format::HAS_LEAST) values[i] -= scales.least[g][output];
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

#define EXPORT(Format, name) \
  void embed_##name(Pool* pool, const EmbedParams* p) { embed<Format>(pool, *p); }
EACH_BLOCK_FORMAT(EXPORT)

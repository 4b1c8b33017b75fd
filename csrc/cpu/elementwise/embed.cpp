// embed: rows of a packed table, so that tied embeddings are stored once, in the form that the products read.
//
// Algorithm  the words of an output are one step of K apart in its panel; they are collected one by one, without rounding.
// Shapes     ids [rows] int64;  table: a packed weight [outputs, inputs];  y [rows, inputs] bfloat16, float16 or float
// Tile       one row of y; threads divide the rows
// Floor      a cache line per word: `words` lines of 64 bytes per row, for 2048 inputs the time to read 64 KB from memory;
//            negligible beside the products of the same token
#include <algorithm>
#include <memory>

#include "elements.h"
#include "pool.h"
#include "tiles/tile.h"

namespace {

template <class T> T at(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Element `e` of a word of an output, whose step of K begins at `step`.
struct Bf16Words {
  using Element = Bfloat16;
  static constexpr int PER_WORD = 2;
  static Element element(const char* step, int output, int e, float) { return at<Element>(step + output * WORD_BYTES + e * 2); }
};
struct Fp16Words {
  using Element = Float16;
  static constexpr int PER_WORD = 2;
  static Element element(const char* step, int output, int e, float) {
    using Layout = WordLayout<Fp16>;
    const int part = 1 - e;  // the odd element comes first
    return at<Element>(step + output / Layout::GROUP * Layout::GROUP * WORD_BYTES + (part * Layout::GROUP + output % Layout::GROUP) * 2);
  }
};
struct Fp32Words {
  using Element = float;
  static constexpr int PER_WORD = 1;
  static Element element(const char* step, int output, int, float) { return at<Element>(step + output * WORD_BYTES); }
};
struct Int8Words {
  using Element = float;
  static constexpr int PER_WORD = 4;
  static Element element(const char* step, int output, int e, float scale) {
    return (float)(at<uint8_t>(step + output * WORD_BYTES + e) - 128) * scale;
  }
};

template <class Words> void read_row(const EmbedParams& p, int64_t id, typename Words::Element* row) {
  const int words = (p.inputs + Words::PER_WORD - 1) / Words::PER_WORD;
  const char* panel = (const char*)p.table + id / PANEL * words * STEP_BYTES;
  const float scale = p.scales ? p.scales[id] : 1.0f;
  for (int k = 0; k < words; k++)
    for (int e = 0; e < Words::PER_WORD; e++)
      row[k * Words::PER_WORD + e] = Words::element(panel + k * STEP_BYTES, (int)(id % PANEL), e, scale);
}

template <class Element> void write_row(const EmbedParams& p, int m, const Element* row) {
  with_element(p.y_dtype, [&](auto element) {
    auto* y = (decltype(element)*)p.y + m * p.y_stride;
    for (int i = 0; i < p.inputs; i += LANES) put(y + i, get(row + i, LANES) * p.multiplier, p.inputs - i);
  });
}

template <class Words> void embed(Pool* pool, const EmbedParams& p) {
  pool->run(p.rows, std::max(1, p.rows / (4 * pool->size())), [&](int begin, int end) {
    const auto row = std::make_unique<typename Words::Element[]>(p.inputs + LANES + Words::PER_WORD);
    for (int m = begin; m < end; m++) {
      const bool known = p.ids[m] >= 0 && p.ids[m] < p.outputs;
      if (known) read_row<Words>(p, p.ids[m], row.get());
      else std::fill_n(row.get(), p.inputs, typename Words::Element{});
      write_row(p, m, row.get());
    }
  });
}

}  // namespace

void embed_bf16(Pool* pool, const EmbedParams* p) { embed<Bf16Words>(pool, *p); }
void embed_fp16(Pool* pool, const EmbedParams* p) { embed<Fp16Words>(pool, *p); }
void embed_fp32(Pool* pool, const EmbedParams* p) { embed<Fp32Words>(pool, *p); }
void embed_int8(Pool* pool, const EmbedParams* p) { embed<Int8Words>(pool, *p); }

// embed: rows of a packed table, so that tied embeddings are held once, in the form that the products read.
//
// Algorithm  the words of an output lie one step of K apart in its panel; they are collected one by one.
// Shapes     ids [rows] int64;  table: a packed weight [outputs, inputs];  y [rows, inputs] bfloat16 or float
// Tile       one row of y; threads share the rows
// Floor      a cache line a word: `words` lines of 64 bytes a row, about as many microseconds for 2048 inputs as the
//            memory takes for 64 KB; nothing beside the products of the same token
#include <algorithm>
#include <memory>

#include "api.h"
#include "pool.h"
#include "tile.h"

namespace {

// How one element of a word becomes a float.
struct Bf16Words {
  static constexpr int PER_WORD = 2;
  static float value(int32_t word, int element, float) {
    const uint32_t bits = element ? (uint32_t)word & 0xffff0000u : (uint32_t)word << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
};
struct Fp32Words {
  static constexpr int PER_WORD = 1;
  static float value(int32_t word, int, float) {
    float x;
    std::memcpy(&x, &word, sizeof x);
    return x;
  }
};
struct Int8Words {
  static constexpr int PER_WORD = 4;
  static float value(int32_t word, int element, float scale) {
    return (float)((int)((uint32_t)word >> (8 * element) & 0xff) - 128) * scale;
  }
};

template <class Words> void read_row(const EmbedParams& p, int64_t id, float* row) {
  const int words = (p.inputs + Words::PER_WORD - 1) / Words::PER_WORD;
  const char* panel = (const char*)p.table + id / PANEL * words * STEP_BYTES + id % PANEL * WORD_BYTES;
  const float scale = p.scales ? p.scales[id] : 1.0f;
  for (int k = 0; k < words; k++) {
    const int32_t word = word_at(panel + k * STEP_BYTES);
    for (int e = 0; e < Words::PER_WORD; e++) row[k * Words::PER_WORD + e] = Words::value(word, e, scale);
  }
}

void write_row(const EmbedParams& p, int m, const float* row) {
  for (int i = 0; i < p.inputs; i += LANES) {
    const int n = std::min(LANES, p.inputs - i);
    if (p.y_is_float) store_n((float*)p.y + m * p.y_stride + i, load(row + i), n);
    else store_bf16_n((uint16_t*)p.y + m * p.y_stride + i, load(row + i), n);
  }
}

template <class Words> void embed(Pool* pool, const EmbedParams& p) {
  pool->run(p.rows, std::max(1, p.rows / (4 * pool->size())), [&](int begin, int end) {
    const auto row = std::make_unique<float[]>(p.inputs + LANES + Words::PER_WORD);
    for (int m = begin; m < end; m++) {
      const bool known = p.ids[m] >= 0 && p.ids[m] < p.outputs;
      if (known) read_row<Words>(p, p.ids[m], row.get());
      else std::fill_n(row.get(), p.inputs, 0.0f);
      write_row(p, m, row.get());
    }
  });
}

}  // namespace

void embed_bf16(Pool* pool, const EmbedParams* p) { embed<Bf16Words>(pool, *p); }
void embed_fp32(Pool* pool, const EmbedParams* p) { embed<Fp32Words>(pool, *p); }
void embed_int8(Pool* pool, const EmbedParams* p) { embed<Int8Words>(pool, *p); }

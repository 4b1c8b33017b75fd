// pack_blocks: rows of blocks of a GGUF file to the panels of formats.h and grid_formats.h, without a loss.
//
// Algorithm  a block's codes and scales are unpacked to bytes, and put at their places in the panel's block, which stays in
//            the first-level cache for its 64 outputs
// Shapes     parts [count], rows of blocks of any stride;  panels: formats.h, grid_formats.h; outputs past the last have scales of zero
// Tile       a block of 64 outputs; threads divide the panels into the same spans as the products
// Floor      2 * bytes of blocks / (read and write bandwidth)
#include "blocks/grid_sources.h"
#include "weights/stored_elements.h"

namespace {

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

inline bool is_finite(uint16_t half) { return (half & Fp16Element::EXPONENT) != Fp16Element::EXPONENT; }

template <class Format> bool is_finite(const uint8_t* block) {
  if constexpr (requires { Source<Format>::d(block); }) return is_finite(Source<Format>::d(block));
  else {
    bool finite = true;
    for (const int half : Source<Format>::HALVES) finite &= is_finite(word_of<uint16_t>(block + half));
    return finite;
  }
}

template <class Format> void put(const PackBlocksParams& p, char* panel, int output, const uint8_t* block) {
  if constexpr (requires { Source<Format>::put(panel, output, block, p.grid); }) Source<Format>::put(panel, output, block, p.grid);
  else Source<Format>::put(panel, output, block);
}

template <class Format> void pack_panel(const PackBlocksParams& params, int panel) {
  const PackParams& p = params.pack;
  const uint8_t* rows[PANEL] = {};
  find_rows(p, panel, rows);
  const int blocks = p.inputs / Format::BLOCK;
  char* out = (char*)p.panels + (size_t)panel * blocks * PANEL_BLOCK_BYTES<Format>;
  bool finite = true;
  for (int b = 0; b < blocks; b++, out += PANEL_BLOCK_BYTES<Format>)
    for (int output = 0; output < PANEL; output++) {
      static constexpr uint8_t EMPTY[Format::FILE_BYTES] = {};
      const uint8_t* block = rows[output] ? rows[output] + (size_t)b * Format::FILE_BYTES : EMPTY;
      finite &= is_finite<Format>(block);
      put<Format>(params, out, output, block);
    }
  if (!finite) __atomic_store_n(p.not_finite, 1, __ATOMIC_RELAXED);
}

template <class Format> void pack(Pool* pool, const PackBlocksParams& p) {
  pool->run_spans(ceil_div(p.pack.outputs, PANEL), 1, [&](int begin, int end) {
    for (int panel = begin; panel < end; panel++) pack_panel<Format>(p, panel);
  });
}

}  // namespace

void pack_blocks(Pool* pool, const PackBlocksParams* p) {
#define PACK(Format, name) \
  if (p->pack.element == BLOCKS_##Format) return pack<Format>(pool, *p);
  EACH_BLOCK_FORMAT(PACK)
}

int64_t panel_block_bytes(int32_t format) {
#define BYTES(Format, name) PANEL_BLOCK_BYTES<Format>,
  constexpr int64_t SIZES[] = {EACH_BLOCK_FORMAT(BYTES)};
  return SIZES[format];
}

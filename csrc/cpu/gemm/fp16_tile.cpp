// gemm_fp16_tile: gemm_fp16 in tile order; gemm.cpp describes the shapes.
//
// Algorithm  rows and weights are split as in split.h. A piece of K adds three dots: high rows by high weights, high rows by low
//            weights, and low rows by high weights. Low by low, at most 2^-18 of a product, is left out: of a sum, a fiftieth
//            of its rounding to float16. A chunk of a panel is split in the nearest caches, then multiplied by a slab of rows.
// Floor      few rows: weight bytes / read bandwidth; many rows: 6 * rows * outputs * inputs flop
// Achieved   not measured with AMX
#include "gemm/split.h"

namespace {

constexpr int DOTS = 3;  // of a piece

// Pieces in the order of their dots.
struct SplitRows : TileRows {
  const char* piece(int dot) const { return TileRows::piece(dot / DOTS * 2 + (dot % DOTS == 2)); }
};
struct SplitWords {
  const char* at;
  const char* piece(int dot) const { return at + (dot / DOTS * 2 + (dot % DOTS == 1)) * PIECE_BYTES; }
};

// `words` words of K, at most a piece, to a piece of high parts and one of low parts, padded with zeros.
[[gnu::noipa]] void split_piece(char* out, const char* panel, int words) {
  for (int k = 0; k < words; k++, panel += STEP_BYTES, out += STEP_BYTES) {
    EACH(line, 4) prefetch<1>(panel + NEAR_BYTES + line * 64);
    EACH(v, PANEL_VECTORS) {
      const auto half = [&](int part) { return split(load_fp16(panel + WordLayout<Fp16>::offset(v, part))); };
      const Split odd = half(0), even = half(1);
      store_words(out + v * sizeof(I32), odd.high | ((even.high >> 16) & 0xffff));
      store_words(out + PIECE_BYTES + v * sizeof(I32), odd.low | ((even.low >> 16) & 0xffff));
    }
  }
  const size_t rest = (PIECE_WORDS - words) * STEP_BYTES;
  if (rest) std::memset(out, 0, rest), std::memset(out + PIECE_BYTES, 0, rest);
}

// A panel with `words` of K per segment.
struct Fp16Panel {
  const char* at;
  int words;

  template <class Packed> void multiply(TileRegisters<Bf16Tiles>& t, float* out, const Slab<Packed>& slab, bool) const {
    alignas(64) char split[MOST_CHUNK_PIECES * PIECE_BYTES];
    const char* segment = at + (size_t)slab.part * words * STEP_BYTES;
    const int pieces = ceil_div(words, PIECE_WORDS), together = std::max(1, chunk_pieces / 2);
    for (int first = 0; first < pieces; first += together) {
      const int count = std::min(together, pieces - first);
      for (int i = 0; i < count; i++) {
        const int word = (first + i) * PIECE_WORDS;
        split_piece(split + i * 2 * PIECE_BYTES, segment + word * STEP_BYTES, std::min(PIECE_WORDS, words - word));
      }
      const Slab<Packed> chunk{slab.x, slab.part, slab.first_row, slab.rows, 2 * first};
      for (int i = 0; i < chunk.blocks(); i++)
        multiply_block(t, out + i * TILE_ROWS * PANEL, PANEL, first > 0, SplitRows{chunk.block(i)}, SplitWords{split}, 0, DOTS * count);
    }
  }
};

void fp16_tile(Pool* pool, const GemmParams& p, const ProductRows& rows) {
  const int inputs = p.inputs / p.segments, words = ceil_div(p.inputs, 2) / p.segments;
  tile_gemm<Bf16Tiles>(pool, p, rows, SplitPieces{inputs}, p.x_stride * sizeof(uint16_t), inputs * sizeof(uint16_t), plain_sums,
                       [&](int panel) { return Fp16Panel{(const char*)p.weight + (size_t)panel * p.segments * words * STEP_BYTES, words}; });
}

}  // namespace

void gemm_fp16_tile(Pool* pool, const GemmParams* p) { fp16_tile(pool, *p, ProductRows(p->rows)); }
void expert_gemm_fp16_tile(Pool* pool, const ExpertGemmParams* p) { fp16_tile(pool, p->product, ProductRows(p->slices)); }

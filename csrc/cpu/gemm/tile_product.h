// Products in tile order: the layout of rows for tiles.h, the products of blocks of tiles, and the loop over panels.
//
// Rows are repacked once per product: for each piece of K, 16 rows end to end. A tile is then consecutive memory, whatever
// the stride of x (a multiple of 2 KB would put a tile's rows into two sets of a cache); the last piece is padded with
// zeros, and nothing past a row's end is read. Weights are read without repacking.
//
// A thread multiplies a panel by SLAB_ROWS rows, `chunk_pieces` of K at a time. A block of 16 rows is multiplied by all four
// columns of 16 outputs, so that between two uses of a chunk of 64 outputs (8 pieces: 32 KB) a core reads only a quarter as
// much of rows, and 4 KB of sums: the chunk stays in a first-level cache of 48 KB, if no other thread of the core uses that;
// kernels/cpu/tile_chunk.py measures which chunk does. (Two blocks by two columns would read a fifth fewer tiles, but twice
// as much between two uses.) A tile is read as soon as the last dot that uses its register is issued.
//
// All panels are multiplied by as many rows as stay in the second-level cache, before other rows are read.
//
// The sizes follow from the sizes of a Sapphire Rapids' caches. On an Emerald Rapids products of many rows reach 0.3 of the
// tiles' rate, a third of what a model of the caches says; docs/benchmarks/kernels.md has both.
#pragma once
#include "gemm/segments.h"
#include "tiles/tiles.h"

constexpr int SLAB_ROWS = 256;
constexpr int MOST_CHUNK_PIECES = 8;
extern int chunk_pieces;  // of a panel's K that are multiplied by a slab before the next; see set_chunk_pieces
constexpr int SHARE_ROWS = 2 * TILE_ROWS;   // threads divide the rows of a panel at multiples of it
constexpr size_t RESIDENT_BYTES = 5 << 18;  // of rows in a second-level cache of 2 MB, together with panels
constexpr int FEWEST_RESIDENT_ROWS = 128;   // for fewer, reading the weights again would take longer than it saves
constexpr int PIECE_LINES = PIECE_BYTES / 64;
constexpr int PACK_BYTES = 1 << 16;  // of rows, per additional thread
constexpr int MOST_SEGMENTS = 4;

// Up to 16 rows in the layout of a product.
struct TileRows {
  const char* at;
  size_t row_bytes, piece_bytes;  // from a row to the next, from a piece to the next
  int rows;
  const char* piece(int i) const { return at + i * piece_bytes; }
};

// One part of K of a panel; an incomplete last piece is copied and padded with zeros.
struct PanelPart {
  const char* words;
  int whole;  // pieces
  const char* tail;
  int pieces() const { return whole + (tail != nullptr); }
  const char* piece(int i) const { return i < whole ? words + i * PIECE_BYTES : tail; }
};

inline PanelPart panel_part(const char* panel, int words, char (&copy)[PIECE_BYTES]) {
  const int whole = words / PIECE_WORDS, rest = words % PIECE_WORDS;
  if (!rest) return {panel, whole, nullptr};
  std::memcpy(copy, panel + whole * PIECE_BYTES, rest * STEP_BYTES);
  std::memset(copy + rest * STEP_BYTES, 0, PIECE_BYTES - rest * STEP_BYTES);
  return {panel, whole, copy};
}

// The pieces of a part of a row of x, as they are.
struct WholePieces {
  size_t part_bytes;
  int count() const { return (int)((part_bytes + PIECE_ROW_BYTES - 1) / PIECE_ROW_BYTES); }
  void copy(char* to, const char* part, int i) const {
    const size_t left = part_bytes - i * PIECE_ROW_BYTES;
    if (left >= PIECE_ROW_BYTES) std::memcpy(to, part + i * PIECE_ROW_BYTES, PIECE_ROW_BYTES);
    else std::memcpy(to, part + i * PIECE_ROW_BYTES, left), std::memset(to + left, 0, PIECE_ROW_BYTES - left);
  }
};

// Rows of x in blocks of 16 rows of one expert; a block has the pieces of one part of K after another.
template <class Pieces = WholePieces> class PackedRows {
 public:
  PackedRows(const ProductRows& rows, int parts, const Pieces& pieces) : rows_(rows), parts_(parts), pieces_(pieces) {}

  size_t bytes() const { return (size_t)rows_.total() * parts_ * pieces_.count() * PIECE_ROW_BYTES; }

  // x: rows are `stride` bytes apart, parts of a row `step` bytes.
  void pack(Pool* pool, char* to, const char* x, size_t stride, size_t step) {
    data_ = to;
    const int most = ceil_div(rows_.most(), TILE_ROWS), blocks = rows_.count() * most;  // some experts have fewer
    pool->run(blocks, std::max(1, (int)(PACK_BYTES * (size_t)blocks / bytes())), [&](int begin, int end) {
      for (int i = begin; i < end; i++) {
        const ExpertRows of = rows_[i / most];
        const int first = i % most * TILE_ROWS, row = of.first_row + first;
        if (first < of.rows) pack_block(row, std::min(TILE_ROWS, of.rows - first), to, x + row * stride, stride, step);
      }
    });
  }

  // A block of `rows` rows from `row` on.
  TileRows block(int row, int rows, int part) const {
    return {data_ + offset(row, part, rows), PIECE_ROW_BYTES, rows * PIECE_ROW_BYTES, rows};
  }

 private:
  size_t offset(int row, int part, int rows) const {
    return ((size_t)row * parts_ + rows * part) * pieces_.count() * PIECE_ROW_BYTES;
  }

  void pack_block(int row, int rows, char* data, const char* x, size_t stride, size_t step) const {
    char* to = data + offset(row, 0, rows);
    for (int part = 0; part < parts_; part++)
      for (int i = 0; i < pieces_.count(); i++)
        for (int m = 0; m < rows; m++, to += PIECE_ROW_BYTES) pieces_.copy(to, x + m * stride + part * step, i);
  }

  const ProductRows& rows_;
  int parts_;
  const Pieces pieces_;
  const char* data_ = nullptr;
};

// The prefetches of a pass over a panel's pieces: `lines` cache lines per piece, `distance` bytes after the piece.
struct PieceAhead {
  size_t distance = 0;
  int lines = 0, level = 2;
  void fetch(const char* piece) const {
    const char* from = piece + distance;
    for (int line = 0; line < lines; line++) level == 1 ? prefetch<1>(from + line * 64) : prefetch<2>(from + line * 64);
  }
};

// Of pass `pass` of `passes` over a chunk that is read from memory. If there are several, each prefetches an equal part of the
// next chunk, so that memory and arithmetic overlap for any number of rows.
inline PieceAhead piece_ahead(int pass, int passes) {
  if (passes == 1) return {NEAR_BYTES, PIECE_LINES, 1};
  const int first = PIECE_LINES * pass / passes, past = PIECE_LINES * (pass + 1) / passes;
  return {(size_t)chunk_pieces * PIECE_BYTES + first * 64, past - first, 2};
}

template <int SUMS, class T> inline void begin_sums(TileRegisters<T>& t, bool add, const typename T::Sum* from, size_t stride) {
  if (add) t.template load<SUMS>(from, stride);
  else t.template zero<SUMS>();
}

// out[up to 16][PANEL] = or += one block of rows times pieces [first, past) of a panel.
template <class T, class Rows = TileRows, class Panel = PanelPart>
void multiply_block(TileRegisters<T>& t, typename T::Sum* out, size_t stride, bool add, const Rows& x, const Panel& panel,
                    int first, int past, const PieceAhead& ahead = {}) {
  t.set_rows(x.rows);
  begin_sums<0>(t, add, out, stride), begin_sums<1>(t, add, out + TILE_OUTPUTS, stride);
  begin_sums<2>(t, add, out + 2 * TILE_OUTPUTS, stride), begin_sums<3>(t, add, out + 3 * TILE_OUTPUTS, stride);
  for (int i = first; i < past; i++) {
    const char* words = panel.piece(i);
    t.template load_rows<4>(x.piece(i), x.row_bytes);
    t.template load_words<5>(words);
    t.template load_words<6>(words + TILE_COLUMN_BYTES);
    t.template load_words<7>(words + 2 * TILE_COLUMN_BYTES);
    ahead.fetch(words);
    t.template dot<0, 4, 5>();
    t.template load_words<5>(words + 3 * TILE_COLUMN_BYTES);
    t.template dot<1, 4, 6>();
    t.template dot<2, 4, 7>();
    t.template dot<3, 4, 5>();
  }
  t.template store<0>(out, stride), t.template store<1>(out + TILE_OUTPUTS, stride);
  t.template store<2>(out + 2 * TILE_OUTPUTS, stride), t.template store<3>(out + 3 * TILE_OUTPUTS, stride);
}

// Some rows of a product, in one part of K, from piece `first_piece` on.
template <class Packed> struct Slab {
  const Packed& x;
  int part, first_row, rows;  // first_row is a multiple of 16 rows after the first of its expert
  int first_piece = 0;

  int blocks() const { return ceil_div(rows, TILE_ROWS); }
  TileRows block(int i) const {
    TileRows found = x.block(first_row + i * TILE_ROWS, std::min(TILE_ROWS, rows - i * TILE_ROWS), part);
    found.at += first_piece * found.piece_bytes;
    return found;
  }
};

// out[rows][PANEL] = or += a slab times pieces [first, past) of a panel. `cold`: the pieces are read from memory, and those
// after them are prefetched meanwhile.
template <class T, class Packed>
void multiply_chunk(TileRegisters<T>& t, typename T::Sum* out, bool add, const Slab<Packed>& slab, const PanelPart& panel, int first,
                    int past, bool cold) {
  for (int i = 0; i < slab.blocks(); i++) {
    const PieceAhead ahead = cold ? piece_ahead(i, slab.blocks()) : PieceAhead{};
    multiply_block(t, out + i * TILE_ROWS * PANEL, PANEL, add, slab.block(i), panel, first, past, ahead);
  }
}

// A panel in the layout of a product, with `words` of K per segment.
struct PanelWords {
  const char* at;
  int words;

  // out[rows][PANEL] = a slab times its part of K.
  template <class T, class Packed> void multiply(TileRegisters<T>& t, typename T::Sum* out, const Slab<Packed>& slab, bool cold) const {
    alignas(64) char tail[PIECE_BYTES];
    const PanelPart part = panel_part(at + (size_t)slab.part * words * STEP_BYTES, words, tail);
    const int pieces = chunk_pieces;
    for (int first = 0; first < part.pieces(); first += pieces)
      multiply_chunk(t, out, first > 0, slab, part, first, std::min(first + pieces, part.pieces()), cold);
  }
};

// Like for_panels; rows of an expert are divided at multiples of SHARE_ROWS.
template <class Body> void for_tile_panels(Pool* pool, const GemmParams& p, const ProductRows& rows, Body body) {
  const int shares = ceil_div(rows.most(), SHARE_ROWS);
  for_panels(pool, p, rows, SHARE_ROWS, shares, shares > 1, body);
}

// Calls body(rows, first_row) for the rows that stay in the second-level cache while all panels are multiplied by them, one
// set after another.
template <class Body> void for_resident_rows(const ProductRows& all, size_t row_bytes, Body body) {
  const int fit = (int)(RESIDENT_BYTES / row_bytes), units = ceil_div(all.total(), SHARE_ROWS);
  const int sets = fit < FEWEST_RESIDENT_ROWS || all.most() <= fit ? 1 : ceil_div(all.total(), fit);
  for (int s = 0; s < sets; s++) {
    const int first = share(units, s, sets) * SHARE_ROWS, past = std::min(share(units, s + 1, sets) * SHARE_ROWS, all.total());
    body(all.slab(first, past - first), first);
  }
}

// Some rows of y, of which x has those from row `begin` of y on, times one panel; values and panels as in tile_gemm.
template <class T, class Packed, class Value, class Panel>
void tile_panel(const GemmParams& p, const Packed& x, const PanelRows& of, int begin, Value value, const Panel& panel) {
  TileRegisters<T> registers;
  alignas(64) typename T::Sum out[MOST_SEGMENTS][SLAB_ROWS * PANEL];
  for (int from = 0; from < of.rows; from += SLAB_ROWS) {
    const int row = of.first_row + from, rows = std::min(SLAB_ROWS, of.rows - from);
    for (int s = 0; s < p.segments; s++) panel.multiply(registers, out[s], Slab<Packed>{x, s, row, rows}, from == 0);
    finish_values(p, of, begin + from, rows, [&](int m, int c, int n) {  // segments are added as in segments.h
      const auto sum = [&](int s) { return value(out[s], begin + row, s, m, c, n); };
      if (p.segments == 1) return sum(0);
      const F32 first = sum(0) + sum(1);
      return p.segments == 2 ? first : first + (sum(2) + sum(3));
    });
  }
}

// y = x * weight^T. A segment of a row has `pieces`; segments are `x_step` bytes apart. values(panel)(out, row, segment, m,
// c, n) as in segmented_product; panels(panel) returns what multiplies by a panel, see PanelWords.
template <class T, class Pieces, class Values, class Panels>
void tile_gemm(Pool* pool, const GemmParams& p, const ProductRows& all, const Pieces& pieces, size_t x_stride, size_t x_step,
               Values values, Panels panels) {
  if (!all.count()) return;
  for_resident_rows(all, p.segments * pieces.count() * PIECE_ROW_BYTES, [&](const ProductRows& rows, int begin) {
    PackedRows x(rows, p.segments, pieces);
    x.pack(pool, (char*)row_arena().reserve(x.bytes()), (const char*)p.x + begin * x_stride, x_stride, x_step);
    for_tile_panels(pool, p, rows, [&](const PanelRows& of) {
      tile_panel<T>(p, x, of, begin, values(of.panel), panels(of.panel));
    });
  });
}

// The panels of p.weight, with `words` of K per segment.
inline auto stored_panels(const GemmParams& p, int words) {
  return [&p, words](int panel) { return PanelWords{(const char*)p.weight + (size_t)panel * p.segments * words * STEP_BYTES, words}; };
}

// What a product without scales returns.
constexpr auto plain_sums = [](int) { return [](const float* out, int, int, int m, int c, int) { return load(out + m * PANEL + c); }; };

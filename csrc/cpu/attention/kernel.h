// The kernel of attention.cpp: a class for each type of cache and order of summation.
#pragma once
#include "attention/scratch.h"
#include "attention/softmax.h"
#include "attention/cache/tiles.h"
#include "pool.h"

template <class Kv, bool TILED = false> class Attention {
 public:
  // value_dim: how many elements of a value are mixed; they are an output's. row_dim: of listed rows, see cache/gather.h.
  Attention(Pool* pool, const AttentionParams& p, int value_dim, int row_dim)
      : pool_(pool), p_(p), size_(p.head_dim, value_dim), scale_(p), tiles_(p, size_, row_dim), plan_(p, pool->size()) {}

  void run() {
    thread_local Arena parts;
    parts_ = (float*)parts.reserve(plan_.parts * p_.kv_heads * part_floats() * sizeof(float));
    const int items = (int)plan_.items.size();
    // Several items per call, because each walk begins by locating the tiles that it prefetches.
    const int grain = plan_.decodes() ? std::clamp(items / (8 * ITEMS_PER_THREAD * pool_->size()), 1, 4) : 1;
    pool_->run_spans(items, grain, [&](int begin, int end) {
      Walk<Kv> walk(tiles_, plan_, begin);
      for (int i = begin; i < end; i++) run_item(plan_.items[i], walk);
    });
    if (plan_.parts > 0)
      pool_->run((int)plan_.units.size() * p_.kv_heads, 1, [&](int begin, int end) {
        for (int i = begin; i < end; i++) join_parts(i / p_.kv_heads, i % p_.kv_heads);
      });
  }

 private:
  using Computed = typename Kv::Computed;
  using Row = typename Kv::Row;
  using Scratch = ::Scratch<Kv, TILED>;
  static constexpr float ONES[] = {1, 1, 1, 1, 1, 1, 1, 1};
  static_assert(DIRECT_BLOCK <= std::size(ONES));

  void run_item(const Item& item, Walk<Kv>& walk) const {
    const Unit& unit = plan_.units[item.unit];
    Scratch s(unit.rows, size_, p_, item.first_head, item.heads);
    std::conditional_t<TILED, TileRegisters<Bf16Tiles>, char> registers;
    if constexpr (TILED) s.registers = &registers;
    const auto for_heads = [&](auto body) {
      for (int i = 0; i < item.heads; i++) {
        s.select(i);
        body();
      }
    };
    for_heads([&] { begin(unit, s); });
    for (int range = unit.first_range; range <= unit.last_range; range++) {
      for_heads([&] { start_range(unit, s); });
      for (int t = unit.first_tile(range); t <= unit.last_tile(range); t++)
        for_heads([&] { step(unit, t, walk, s); });
      for_heads([&] { end_range(unit, s); });
    }
    for_heads([&] { end(unit, s); });
  }

  void begin(const Unit& unit, const Scratch& s) const {
    TILED ? load_packed_query(unit, s.head, s) : load_query(unit, s.head, s);
    std::fill_n(s.all.total, unit.rows, 0.0f);
  }

  void step(const Unit& unit, int t, Walk<Kv>& walk, const Scratch& s) const {
    Tile& tile = walk.now().at;
    if constexpr (IS_CODED<Kv>) tile = expand(tile, walk.next().at, p_, s.expansion);
    else tiles_.make_readable(unit, t, tile, s.copies);
    unit.direct() && !TILED ? direct_step(unit, t, walk, s) : panel_step(unit, t, walk, s);
    walk.advance();
  }

  void end_range(const Unit& unit, const Scratch& s) const {
    for (int m = 0; m < unit.rows; m++) s.range.total[m] = sum(load_wide(s.totals + m * WIDE));
    if (unit.first_range != unit.last_range) join_rows(unit.rows, s.all, s.range);
  }

  void end(const Unit& unit, const Scratch& s) const {
    const Sums& result = unit.first_range == unit.last_range ? s.range : s.all;
    if (unit.whole()) write(unit, s.head, result);
    else keep_part(unit, s.head, result);
  }

  size_t query_bytes() const { return ::query_bytes<Kv, TILED>(size_); }

  // The first element of a row, in a tensor [tokens, heads, dim].
  int64_t element(const Unit& unit, int head, int row, int64_t token_stride, int dim) const {
    const int query_head = head * p_.group + row % p_.group;
    return (unit.first_token + row / p_.group) * token_stride + (int64_t)query_head * dim;
  }

  char* query_row(const Scratch& s, int row) const { return s.query + row * query_bytes(); }
  float* values_row(const Sums& sums, int row) const { return sums.values + (size_t)row * size_.columns; }

  // Queries in the layout of the products: rows, or for a direct unit the pieces of each block.
  void load_query(const Unit& unit, int head, const Scratch& s) const {
    const auto* query = (const typename Kv::Element*)p_.query;
    for_blocks(unit, [&](int first, int count) {
      for (int m = 0; m < count; m++) {
        const auto* from = query + element(unit, head, first + m, p_.query_stride, size_.head_dim);
        if (unit.direct()) load_pieces<Computed>(query_row(s, first) + m * PIECE<Computed>, from, count, size_);
        else load_row<Computed>(query_row(s, first + m), from, size_);
      }
    });
  }

  void load_packed_query(const Unit& unit, int head, const Scratch& s) const {
    for (int row = 0; row < unit.rows; row++) {
      size_t step;
      char* to = packed_row(s.query, unit.rows, row, query_bytes(), step);
      const auto* from = (const typename Kv::Element*)p_.query + element(unit, head, row, p_.query_stride, size_.head_dim);
      pack_query_row(to, step, (const char*)from, size_.head_dim * sizeof(*from));
    }
  }

  // Calls body(first row, rows) for each block of rows that are computed together.
  template <class Body> void for_blocks(const Unit& unit, Body body) const {
    if constexpr (TILED) {
      for (int first = 0; first < unit.rows; first += TILED_ROWS) body(first, std::min(TILED_ROWS, unit.rows - first));
      return;
    }
    const int most = unit.direct() ? DIRECT_BLOCK : PANEL_BLOCK<Kv>, blocks = (unit.rows + most - 1) / most;
    for (int b = 0; b < blocks; b++) {
      const int first = unit.rows * b / blocks;
      body(first, unit.rows * (b + 1) / blocks - first);
    }
  }

  void start_range(const Unit& unit, const Scratch& s) const {
    std::fill_n(s.range.values, (size_t)unit.rows * size_.columns, 0.0f);
    std::fill_n(s.range.top, unit.rows, LOWEST);
    std::fill_n(s.totals, unit.rows * WIDE, 0.0f);
  }

  // --- one tile ---

  const float* pairs_of_tile(const Unit& unit, int head, int row, int t) const {
    const int64_t token = unit.first_token + row / p_.group, query_head = head * p_.group + row % p_.group;
    return p_.pairs + (token * p_.kv_heads * p_.group + query_head) * p_.pairs_stride + t * TILE_KEYS;
  }

  // Keys of the tile that a row attends to: [from, to), which may extend beyond the tile on both sides.
  int last_seen(const Unit& u, int row) const { return p_.is_bidirectional ? u.seen_to : u.position + row / p_.group + 1; }
  int sees_to(const Unit& unit, int row, int t) const { return last_seen(unit, row) - t * TILE_KEYS; }
  int sees_from(const Unit& u, int row, int t) const { return first_seen(p_, u.position + row / p_.group) - t * TILE_KEYS; }

  // Halves of the tile that have keys for the rows up to and including `last`.
  int halves(const Unit& unit, int last, int t) const { return sees_to(unit, last, t) > HALF_KEYS ? 2 : 1; }

  [[gnu::noinline]] void weigh_rows(const Unit& unit, int t, int first, int count, const Scratch& s) const {
    const int seen = halves(unit, first + count - 1, t);
    for (int m = 0; m < count; m++) {
      const int row = first + m, from = sees_from(unit, row, t), to = sees_to(unit, row, t);
      const bool sees_all = from <= 0 && to >= seen * HALF_KEYS;
      const auto weigh_row = scale_.shapes ? sees_all ? weigh<Kv, false, true> : weigh<Kv, true, true>
                             : sees_all    ? weigh<Kv, false, false> : weigh<Kv, true, false>;
      Slant slant{0, unit.position + row / p_.group - t * TILE_KEYS};
      if (s.slopes) slant.slope = LOG2E * s.slopes[row % p_.group];
      if (p_.bias) slant.bias = of_tile(p_, s.biases + row % p_.group * bias_floats(p_), -slant.level);
      if (p_.pairs) slant.bias = pairs_of_tile(unit, s.head, row, t), slant.unit = LOG2E;
      float *scores = s.scores + m * TILE_KEYS, *totals = s.totals + row * WIDE;
      s.keep[m] = weigh_row(scores, seen, from, to, scale_, slant, s.range.top[row], totals,
                            s.weights + m * TILE_KEYS, s.expansion.key_scales, s.expansion.value_scales);
    }
  }

  void direct_step(const Unit& unit, int t, const Walk<Kv>& walk, const Scratch& s) const {
    for_blocks(unit, [&](int first, int count) {
      with_rows<DIRECT_BLOCK>(count, [&](auto rows) {
        constexpr bool PREFETCHES = !IS_CODED<Kv> && !IS_COMPACT;
        if (PREFETCHES && first == 0) direct_block<rows, PREFETCHES>(unit, t, first, walk, s);
        else direct_block<rows, false>(unit, t, first, walk, s);
      });
    });
  }

  template <int ROWS, bool AHEAD>
  void direct_block(const Unit& unit, int t, int first, const Walk<Kv>& walk, const Scratch& s) const {
    const Tile& tile = walk.now().at;
    constexpr int WIDTH = DIRECT_VECTORS<ROWS> * LANES;
    constexpr bool HAS_TAIL = WIDTH > HEAD_MULTIPLE;
    const int seen = halves(unit, first + ROWS - 1, t);
    for (int h = 0; h < seen; h++) {
      const Ahead ahead{walk.later(h).keys, tile.halves[h].values};
      float* scores = s.scores + h * HALF_KEYS;
      direct_scores<Computed, ROWS, AHEAD>(scores, query_row(s, first), size_, tile.halves[h].keys, ahead);
    }
    weigh_rows(unit, t, first, ROWS, s);
    for (int h = 0; h < seen; h++) {
      const Ahead ahead{walk.later(h).values, walk.later(h).keys};
      const char* weights = (const char*)(s.weights + h * HALF_KEYS);
      for (int c = 0; c < size_.value_columns; c += WIDTH) {
        const auto add = HAS_TAIL && c + WIDTH > size_.value_columns ? direct_values<Computed, ROWS, AHEAD, HAS_TAIL> : direct_values<Computed, ROWS, AHEAD, false>;
        const size_t offset = c * sizeof(typename Kv::Element);
        float* sums = values_row(s.range, first) + c;
        add(sums, h == 0 ? s.keep : ONES, weights, size_, tile.halves[h].values, offset, ahead);
      }
    }
  }

  void panel_step(const Unit& unit, int t, const Walk<Kv>& walk, const Scratch& s) const {
    const Tile &tile = walk.now().at, &next = walk.next().at;
    const int seen = halves(unit, unit.rows - 1, t);
    const bool few = unit.rows <= LARGEST_BLOCK<Kv, TILED>;  // memory decides: what comes is prefetched while this is packed
    for (int h = 0; h < seen; h++) {
      const Half* ahead = few && !IS_CODED<Kv> ? &walk.later(h) : nullptr;
      const auto pack = TILED ? pack_tile_keys<Computed> : pack_keys<Computed, false>;
      pack(s.keys + h * half_panel<Kv, TILED>(size_), size_, tile.halves[h].keys, ahead ? ahead->keys : nullptr);
      char* values = s.values + h * HALF_WORDS<Kv> * PANEL_STEP<Kv>;
      pack_values<Computed>(values, size_, tile.halves[h].values, ahead ? ahead->values : nullptr);
    }
    const int lines = IS_CODED<Kv> || few ? 0 : (int)(4 * size_.row_bytes);  // of the next tile, prefetched between blocks
    int line = 0;
    for_blocks(unit, [&](int first, int count) {
      for (const int until = lines * (first + count) / unit.rows; line < until; line++) prefetch<2>(next.line(line, size_.row_bytes));
      const bool sees_it = sees_to(unit, first + count - 1, t) > 0 && sees_from(unit, first, t) < TILE_KEYS;
      if (!sees_it) return;
      if constexpr (TILED) tile_block(unit, t, first, count, s);
      else with_rows<PANEL_BLOCK<Kv>>(count, [&](auto rows) {
        if constexpr (rows >= fewest_of_panel(PANEL_BLOCK<Kv>)) panel_block<rows>(unit, t, first, s);
        else __builtin_trap();  // the rows would be left out
      });
    });
  }

  void tile_block(const Unit& unit, int t, int first, int count, const Scratch& s) const {
    const int seen = halves(unit, first + count - 1, t);
    for (int h = 0; h < seen; h++)
      for (int m = 0; m < count; m += TILE_ROWS) {
        const TileRows query = block_of<true>(s.query, unit.rows, first + m, query_bytes());
        const char* panel = s.keys + h * half_panel<Kv, TILED>(size_);
        tile_scores(*s.registers, s.scores + m * TILE_KEYS + h * HALF_KEYS, query, panel, head_pieces(size_.words));
      }
    weigh_rows(unit, t, first, count, s);
    tile_values(*s.registers, values_row(s.range, first), size_.columns, s.keep, (const char*)s.weights, count, s.values, seen);
  }

  template <int ROWS> void panel_block(const Unit& unit, int t, int first, const Scratch& s) const {
    using F = typename Kv::F;
    const int seen = halves(unit, first + ROWS - 1, t);
    for (int h = 0; h < seen; h++) {
      const char* panel = s.keys + h * half_panel<Kv, false>(size_);
      panel_scores<F, ROWS>(s.scores + h * HALF_KEYS, query_row(s, first), query_bytes(), panel, size_.words / 4);
    }
    weigh_rows(unit, t, first, ROWS, s);
    const char* weights = (const char*)s.weights;
    for (int c = 0; c < size_.columns; c += PANEL) {
      float* sums = values_row(s.range, first) + c;
      const char* panel = s.values + c * Scratch::COLUMN_BYTES;
      product<F, ROWS, Start::SCALE>(sums, size_.columns, weights, TILE_KEYS * sizeof(Row), panel, seen * HALF_WORDS<Kv>, s.keep);
    }
  }

  // --- results ---

  void join_rows(int rows, const Sums& all, const Sums& part) const {
    for (int m = 0; m < rows; m++) {
      const float* values = values_row(part, m);
      join(values_row(all, m), all.top[m], all.total[m], values, part.top[m], part.total[m], size_.columns, scale_);
    }
  }

  void write(const Unit& unit, int head, const Sums& sums) const {
    for (int m = 0; m < unit.rows; m++) {
      auto* out = (typename Kv::Element*)p_.out + element(unit, head, m, p_.out_stride, size_.value_dim);
      const float* sink = p_.sinks ? p_.sinks + head * p_.group + m % p_.group : nullptr;
      const F32 share = splat(share_of(sums.top[m], sums.total[m], sink, scale_));
      // In tile order, a half that only other rows attend to turns a sum of -0 into 0; adding 0 makes every -0 a 0.
      const auto mean = [&](F32 sum) { return TILED ? fma(sum, share, splat(0.0f)) : sum * share; };
      for (int c = 0; c < size_.value_dim; c += LANES) put(out + c, mean(load(values_row(sums, m) + c)), size_.value_dim - c);
    }
  }

  int part_rows() const { return std::max(DIRECT_ROWS, p_.group); }
  size_t part_floats() const { return (size_t)part_rows() * (size_.columns + 2); }
  Sums part_at(int part, int head) const {
    float* at = parts_ + ((size_t)part * p_.kv_heads + head) * part_floats();
    return {at + 2 * part_rows(), at, at + part_rows()};
  }
  void keep_part(const Unit& unit, int head, const Sums& sums) const {
    const Sums part = part_at(unit.part, head);
    std::copy_n(sums.values, (size_t)unit.rows * size_.columns, part.values);
    std::copy_n(sums.top, unit.rows, part.top);
    std::copy_n(sums.total, unit.rows, part.total);
  }
  void join_parts(size_t unit, int head) const {
    if (!plan_.leads(unit)) return;
    const Unit& leader = plan_.units[unit];
    const Sums all = part_at(leader.part, head);
    for (; plan_.continues(unit); unit++) join_rows(leader.rows, all, part_at(plan_.units[unit + 1].part, head));
    write(leader, head, all);
  }

  Pool* pool_;
  const AttentionParams& p_;
  const Sizes<Computed> size_;
  const Scale scale_;
  const Tiles<Kv> tiles_;
  const Plan plan_;
  float* parts_ = nullptr;
};

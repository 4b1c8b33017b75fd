// The work of one attention call: units of tokens, each over a span of keys. A thread takes one item at a time: one or
// several KV heads of a unit.
//
// A unit of few rows (a decode step) reads tiles straight from the cache; the rows of a large unit share the repacking
// of each tile. Few rows wait for memory. It reads long runs faster than short ones, and the heads of a block are adjacent
// in the cache, so an item of few rows has several heads, whose parts of a tile are read before the next tile.
//
// Keys are always summed in ranges counted from key 0. Threads can therefore divide a long sequence: each range is then a
// separate unit, and its sums are stored as a part until all parts are joined in order.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/attention.h"
#include "pool.h"

constexpr int DIRECT_ROWS = 16;   // a unit of at most this many rows reads tiles straight from the cache
constexpr int PANEL_ROWS = 256;   // most rows of a larger unit
constexpr int RANGE_KEYS = RANGE_TILES * TILE_KEYS;
constexpr int MOST_HEADS = 16;   // of an item

// The first key that a token at `position` attends to.
inline int first_seen(const AttentionParams& p, int position) {
  if (p.attention_chunk) return position / p.attention_chunk * p.attention_chunk;
  return p.window ? std::max(0, position - p.window + 1) : 0;
}

// Consecutive tokens of one request. A row is a query: row m is a query of token m / group.
struct Unit {
  int request;
  int first_token;  // of the batch
  int tokens;
  int position;     // of the first token
  int rows;
  int seen_from, seen_to;       // keys that any of the tokens attends to
  int first_range, last_range;  // inclusive
  int part;                     // where the sums are stored until they are joined; -1: they are complete

  bool direct() const { return rows <= DIRECT_ROWS; }
  bool whole() const { return part < 0; }
  int first_tile(int range) const { return std::max(range * RANGE_TILES, seen_from / TILE_KEYS); }
  int last_tile(int range) const { return std::min((range + 1) * RANGE_TILES - 1, (seen_to - 1) / TILE_KEYS); }
  int halves(int tile) const { return seen_to - tile * TILE_KEYS > HALF_KEYS ? 2 : 1; }  // that any token attends to
  int64_t cost() const { return (int64_t)(seen_to - seen_from) * std::max(rows, 8); }
};

struct Item {
  int unit, first_head, heads;  // KV heads
};

struct Plan {
  std::vector<Unit> units;  // the longest first
  std::vector<Item> items;  // those of the first thread, of the second, ...
  int parts = 0;

  Plan(const AttentionParams& p, int threads) {
    for (int request = 0; request < p.rows; request++) cut_request(p, request);
    std::sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
      return a.cost() != b.cost() ? a.cost() > b.cost() : a.first_token < b.first_token;
    });
    if (threads > 1 && (int)units.size() * p.kv_heads < ITEMS_PER_THREAD * threads) cut_ranges();
    const std::vector<Item> all = cut_heads(p.kv_heads, threads);
    // Distributed round robin: every thread gets equally many long items, and knows which one it reads next.
    items.reserve(all.size());
    for (int t = 0; t < threads; t++)
      for (size_t i = t; i < all.size(); i += threads) items.push_back(all[i]);
  }

  bool decodes() const { return units.empty() || units[0].direct(); }
  // Whether the unit's part is the first part of its tokens.
  bool leads(size_t unit) const { return !units[unit].whole() && (unit == 0 || !continues(unit - 1)); }
  // Whether the next unit's part belongs to the same tokens.
  bool continues(size_t unit) const {
    return unit + 1 < units.size() && units[unit].first_token == units[unit + 1].first_token;
  }

 private:
  // Units of many rows end at positions that are a multiple of their length, so that few tiles are partly masked.
  void cut_request(const AttentionParams& p, int request) {
    const int start = p.row_starts[request], count = p.row_starts[request + 1] - start;
    int step = 1;
    while (step * 2 * p.group <= PANEL_ROWS) step *= 2;
    for (int done = 0, tokens; done < count; done += tokens) {
      const int position = p.kv_lens[request] - count + done, left = count - done;
      tokens = left * p.group <= DIRECT_ROWS ? left : std::min(left, step - position % step);
      const int from = first_seen(p, position);
      const int to = p.is_bidirectional ? p.kv_lens[request] : position + tokens;
      units.push_back({request, start + done, tokens, position, tokens * p.group, from, to, from / RANGE_KEYS,
                       (to - 1) / RANGE_KEYS, -1});
    }
  }

  std::vector<Item> cut_heads(int kv_heads, int threads) const {
    const int wanted = threads == 1 ? 1 : 2 * ITEMS_PER_THREAD * threads;
    int most = std::min(kv_heads, MOST_HEADS);  // as many as leave enough items
    while (most > 1 && (int)units.size() * ((kv_heads + most - 1) / most) < wanted) most = (most + 1) / 2;
    std::vector<Item> all;
    for (int u = 0; u < (int)units.size(); u++)
      for (int head = 0, count; head < kv_heads; head += count) {
        count = units[u].direct() ? std::min(most, kv_heads - head) : 1;
        all.push_back({u, head, count});
      }
    return all;
  }

  void cut_ranges() {
    std::vector<Unit> cut;
    for (const Unit& unit : units) {
      const bool few = unit.direct() || unit.tokens == 1;  // one token may have many heads
      const bool whole = !few || unit.first_range == unit.last_range;
      for (int range = unit.first_range; range <= (whole ? unit.first_range : unit.last_range); range++) {
        cut.push_back(unit);
        if (whole) continue;
        cut.back().first_range = cut.back().last_range = range;
        cut.back().part = parts++;
      }
    }
    units = std::move(cut);
  }
};

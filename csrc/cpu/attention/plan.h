// The work of one attention call: units of tokens, each over a span of keys. Threads take one KV head of a unit at a time.
//
// A unit of few rows (a decode step) reads tiles straight from the cache; the rows of a large unit share the repacking
// of each tile. Keys are always summed in ranges counted from key 0. Threads can therefore divide a long sequence: each
// range is then a separate unit, and its sums are stored as a part until all parts are joined in order.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/attention.h"

constexpr int DIRECT_ROWS = 16;   // a unit of at most this many rows reads tiles straight from the cache
constexpr int PANEL_ROWS = 256;   // most rows of a larger unit
constexpr int RANGE_KEYS = RANGE_TILES * TILE_KEYS;

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

struct Plan {
  std::vector<Unit> units;  // the longest first
  std::vector<int> order;   // items of the first thread, of the second, ...; item = unit * kv_heads + KV head
  int parts = 0;

  Plan(const AttentionParams& p, int threads) {
    for (int request = 0; request < p.rows; request++) cut_request(p, request);
    std::sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
      return a.cost() != b.cost() ? a.cost() > b.cost() : a.first_token < b.first_token;
    });
    if (threads > 1 && (int)units.size() * p.kv_heads < ITEMS_PER_THREAD * threads) cut_ranges();
    // Distributed round robin: every thread gets equally many long items, and knows which one it reads next.
    const int items = (int)units.size() * p.kv_heads;
    order.reserve(items);
    for (int t = 0; t < threads; t++)
      for (int item = t; item < items; item += threads) order.push_back(item);
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

// The addresses of a unit's tiles in the paged cache, their masked parts, and the tiles that follow: memory is prefetched
// two half tiles ahead, even if they belong to another item.
#pragma once
#include "attention/cache/gather.h"
#include "attention/plan.h"

template <class Kv> class Tiles {
 public:
  Tiles(const AttentionParams& p, const Sizes<typename Kv::Computed>& size, int row_dim) : p_(p), size_(size), row_dim_(row_dim) {}

  // Streams without a key for the unit read as zeros: their table entry may have any value. So do all of listed rows until they
  // are made readable.
  Tile locate(const Unit& unit, int head, int tile) const {
    Tile found;
    const int32_t* table = p_.block_tables + (int64_t)unit.request * p_.table_stride;
    for (int s = 0; s < 2 * STREAMS; s++) {
      Half& half = found.halves[s / STREAMS];
      const int key = tile * TILE_KEYS + s * STREAM_KEYS;
      half.keys[s % STREAMS] = half.values[s % STREAMS] = ZEROS;
      half.rows[s % STREAMS] = -1;
      if (lists_rows(p_) || key >= unit.seen_to || key + STREAM_KEYS <= unit.seen_from) continue;
      const int64_t block = (int64_t)table[key / p_.block_size] * p_.kv_heads + head;
      const int64_t row = half.rows[s % STREAMS] = block * p_.block_size + key % p_.block_size;
      const int64_t offset = row * size_.row_dim * (int64_t)sizeof(typename Kv::Stored);
      half.keys[s % STREAMS] = (const char*)p_.keys + offset;
      half.values[s % STREAMS] = (const char*)p_.values + offset;
    }
    return found;
  }

  // Copies what must be replaced before the tile is read, or, of listed rows, all of it.
  void make_readable(const Unit& unit, int tile, Tile& found, char* copies) const {
    if (lists_rows(p_)) found = gather(p_, unit, tile, size_.row_bytes, row_dim_ * sizeof(typename Kv::Stored), copies);
    else hide(unit, tile, found, copies);
  }

 private:
  // Masked values may be NaN, and 0 times NaN is NaN. In streams that are partly masked, at most two, copies replace them
  // by zeros. Masked keys stay: their scores are never used.
  void hide(const Unit& unit, int tile, Tile& found, char* copies) const {
    const int from = unit.seen_from - tile * TILE_KEYS, to = unit.seen_to - tile * TILE_KEYS;
    if (from <= 0 && to >= TILE_KEYS) return;
    for (int s = 0; s < 2 * STREAMS; s++) {
      const int first = s * STREAM_KEYS, end = first + STREAM_KEYS;
      const bool starts = first < from && from < end, ends = first < to && to < end;
      if (!starts && !ends) continue;
      const char*& values = found.halves[s / STREAMS].values[s % STREAMS];
      for (int i = 0; i < STREAM_KEYS; i++) {
        char* copy = copies + i * size_.row_bytes;
        if (first + i < from || first + i >= to) std::memset(copy, 0, size_.row_bytes);
        else std::memcpy(copy, values + i * size_.row_bytes, size_.row_bytes);
      }
      values = copies;
      copies += STREAM_KEYS * size_.row_bytes;
    }
  }

  const AttentionParams& p_;
  const Sizes<typename Kv::Computed> size_;
  const int row_dim_;
};

// One tile of one head.
struct Step {
  int tile = 0;
  int halves = 2;  // that any of the unit's tokens attends to
  Tile at;
};

// Visits the tiles of all items, a tile of all of an item's heads before the next tile; after the last tile come zeros.
template <class Kv> class Walk {
 public:
  // Begins with item `begin`.
  Walk(const Tiles<Kv>& tiles, const Plan& plan, int begin) : tiles_(tiles), plan_(plan), item_(begin), tile_(first_tile()) {
    for (Step& step : steps_) locate(step);
  }

  Step& now() { return steps_[now_]; }
  const Step& now() const { return steps_[now_]; }
  const Step& next() const { return steps_[(now_ + 1) % 3]; }

  void advance() {
    locate(steps_[now_]);
    now_ = (now_ + 1) % 3;
  }

  // The half tile that is visited two half tiles after half `h` of this tile.
  const Half& later(int h) const {
    const Step &here = steps_[now_], &next = steps_[(now_ + 1) % 3], &after = steps_[(now_ + 2) % 3];
    const int i = h + 2 - here.halves;
    return i < next.halves ? next.at.halves[i] : after.at.halves[i - next.halves];
  }

 private:
  bool over() const { return item_ >= (int)plan_.items.size(); }
  const Item& item() const { return plan_.items[item_]; }
  const Unit& unit() const { return plan_.units[item().unit]; }
  int first_tile() const { return over() ? 0 : unit().first_tile(unit().first_range); }

  void locate(Step& step) {
    if (over()) {
      step = Step{};
      for (Half& half : step.at.halves) {
        std::fill_n(half.keys, STREAMS, ZEROS);
        std::fill_n(half.values, STREAMS, ZEROS);
      }
      return;
    }
    step.tile = tile_;
    step.halves = unit().halves(tile_);
    step.at = tiles_.locate(unit(), item().first_head + head_, tile_);
    if (++head_ < item().heads) return;
    head_ = 0;
    if (tile_++ < unit().last_tile(unit().last_range)) return;
    item_++;
    tile_ = first_tile();
  }

  const Tiles<Kv>& tiles_;
  const Plan& plan_;
  int item_, tile_, head_ = 0;  // those that are located next; the head is counted from the item's first
  int now_ = 0;
  Step steps_[3];
};

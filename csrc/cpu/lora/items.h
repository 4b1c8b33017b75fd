// What shrink and expand share: the groups of rows, and the items of a kernel.
#pragma once
#include "elements.h"
#include "lora/lora.h"
#include "pool.h"
#include "tiles/tile.h"

constexpr int RANK_BLOCK = 4, GROUP_ROWS = 16, MAX_RANK = 256;
constexpr int CHUNK_PANELS = 8;  // of the outputs, per item
constexpr int MAX_EARLY_GROUP_ROWS = 4;  // of a group whose part of B (A x) a product may compute

struct Group {
  int32_t place, first, count;
};

struct Groups {
  const Group* of;
  const int32_t* rows;
  int count;

  explicit Groups(const LoraParams& p)
      : of((const Group*)(p.groups + 1)), rows(p.groups + 1 + 3 * (int64_t)p.rows), count(p.groups[0]) {}
};

template <int COUNT, class Element> void prefetch_elements(const Element* p) {
  EACH(line, (int)(COUNT * sizeof(Element) / 64)) prefetch<1>((const char*)p + line * 64);
}

// Some ranks of A, or outputs of B, of the adapter of a group.
template <class Element> struct Item {
  const Group& group;
  int part, first;  // rank or output
  const LoraPart& lora;
  const Element* matrix;  // from `first` on; null: there is nothing to compute
};

// The matrix of the next item after `item` that has one; otherwise `last`. A thread mostly takes items in order.
template <class Items, class Element> const Element* matrix_after(const Items& all, int item, const Element* last) {
  while (++item < all.items)
    if (const Element* next = all.at(item).matrix) return next;
  return last;
}

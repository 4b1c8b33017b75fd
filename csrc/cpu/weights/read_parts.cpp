// read_parts: reads a range of a file into several pieces of memory, one after the other, and computes a checksum of each.
//
// Algorithm  that of checksum.h, over spans of 64 KB: a span is checked while it is in the first or second cache
// Shapes     addresses, bytes, sums [count]
// Tile       a span; on the calling thread, since the pool's threads compute steps meanwhile
// Floor      bytes / bandwidth of copying
#include <algorithm>

#include "api.h"
#include "checksum.h"
#include "pool.h"

namespace {

constexpr int64_t SPAN = 64 << 10;

}  // namespace

void read_parts(Pool*, const ReadPartsParams* p) {
  int64_t offset = p->offset;
  *p->failure = 0;
  for (int part = 0; part < p->count; part++) {
    uint64_t total = 0;
    for (int64_t at = 0; at < p->bytes[part]; at += SPAN) {
      char* const here = (char*)p->addresses[part] + at;
      const int64_t count = std::min(SPAN, p->bytes[part] - at);
      const int error = p->file < 0 ? 0 : read_all(p->file, offset, here, count);
      if (error) {
        *p->failure = error;
        return;
      }
      total = mixed(total, checksum(here, count));
      offset += count;
    }
    p->sums[part] = total;
  }
}

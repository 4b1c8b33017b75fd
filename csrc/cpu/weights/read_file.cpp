// read_file: reads a range of a file into memory, and computes a checksum of each megabyte.
//
// Algorithm  that of checksum.h
// Shapes     sums [ceil(bytes / 1 MB)]
// Tile       a megabyte, checked while it is in the second-level cache; threads divide them into spans, like the panels
//            that the file contains
// Floor      bytes / bandwidth of copying
#include <algorithm>
#include <atomic>
#include <memory>

#include "api.h"
#include "checksum.h"
#include "pool.h"

namespace {

constexpr int64_t CHUNK = 1 << 20, PAGE = 4096;

// Maps the pages of new memory before the kernel copies into it: the copy would map them one by one, as small pages.
void touch(char* at, int64_t count) {
  for (int64_t i = 0; i < count; i += PAGE) ((volatile char*)at)[i] = 0;
}

}  // namespace

void read_file(Pool* pool, const ReadFileParams* p) {
  std::atomic<int> failure{0};
  pool->run_spans((int)((p->bytes + CHUNK - 1) / CHUNK), 1, [&](int begin, int end) {
    const auto scratch = p->into ? nullptr : std::make_unique<char[]>(CHUNK);
    for (int chunk = begin; chunk < end; chunk++) {
      const int64_t at = chunk * CHUNK, count = std::min(CHUNK, p->bytes - at);
      char* const here = scratch ? scratch.get() : (char*)p->into + at;
      if (p->file >= 0) touch(here, count);
      if (const int error = p->file < 0 ? 0 : read_all(p->file, p->offset + at, here, count)) failure = error;
      p->sums[chunk] = checksum(here, count);
    }
  });
  *p->failure = failure;
}

// read_file: reads a range of a file into memory, and computes a checksum of each megabyte.
//
// Algorithm  eight lanes process blocks of 64 bytes; each lane combines 8 bytes by exclusive or, multiplication by an odd
//            number, and a shift. All three are reversible, so a change within one word always changes the checksum. It
//            detects accidents, not an adversary.
// Shapes     sums [ceil(bytes / 1 MB)]
// Tile       a megabyte, checked while it is in the second-level cache; threads divide them into spans, like the panels
//            that the file contains
// Floor      bytes / bandwidth of copying
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>

#include <unistd.h>

#include "api.h"
#include "pool.h"

namespace {

constexpr int64_t CHUNK = 1 << 20, PAGE = 4096;
constexpr int LANES_OF_SUM = 8;
constexpr uint64_t FACTOR = 0x9fb21c651e98df25;

uint64_t mixed(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * FACTOR;
  return sum ^ sum >> 32;
}

uint64_t checksum(const char* bytes, int64_t count) {
  uint64_t lanes[LANES_OF_SUM], words[LANES_OF_SUM];
  for (int i = 0; i < LANES_OF_SUM; i++) lanes[i] = i + 1;
  int64_t at = 0;
  for (; at + (int64_t)sizeof words <= count; at += sizeof words) {
    std::memcpy(words, bytes + at, sizeof words);
    for (int i = 0; i < LANES_OF_SUM; i++) lanes[i] = mixed(lanes[i], words[i]);
  }
  std::memset(words, 0, sizeof words);
  std::memcpy(words, bytes + at, count - at);
  uint64_t total = (uint64_t)count;
  for (int i = 0; i < LANES_OF_SUM; i++) total = mixed(total, mixed(lanes[i], words[i]));
  return total;
}

// Maps the pages of new memory before the kernel copies into it: the copy would map them one by one, as small pages.
void touch(char* at, int64_t count) {
  for (int64_t i = 0; i < count; i += PAGE) ((volatile char*)at)[i] = 0;
}

// 0, or the error's number; EIO if the file ends early.
int read_all(int file, int64_t offset, char* into, int64_t count) {
  while (count > 0) {
    const ssize_t got = pread(file, into, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    into += got, offset += got, count -= got;
  }
  return 0;
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

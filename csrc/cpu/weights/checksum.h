// Checksums of bytes that come from files, and reading them. read_file.cpp, read_parts.cpp.
//
// Eight lanes process blocks of 64 bytes; each lane combines 8 bytes by exclusive or, multiplication by an odd number, and
// a shift. All three are reversible, so a change within one word always changes the checksum. It detects accidents, not an
// adversary.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <unistd.h>

namespace {

constexpr int LANES_OF_SUM = 8;
constexpr uint64_t FACTOR = 0x9fb21c651e98df25;

inline uint64_t mixed(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * FACTOR;
  return sum ^ sum >> 32;
}

inline uint64_t checksum(const char* bytes, int64_t count) {
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

// 0, or the error's number; EIO if the file ends early.
inline int read_all(int file, int64_t offset, char* into, int64_t count) {
  while (count > 0) {
    const ssize_t got = pread(file, into, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    into += got, offset += got, count -= got;
  }
  return 0;
}

}  // namespace

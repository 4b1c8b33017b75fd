// A heap in memory that another process can map at the same address. It is preloaded into a Python process and serves all
// its mallocs, so that kernels in a second process, under an emulator, find the operands of a call at the same addresses.
//
// The size of a block is a power of two, and blocks are aligned to their size. Memory is taken in chunks, each with blocks
// of one size, so that a table has the block of every address. No memory is returned to the system.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr uintptr_t BASE = 0x200000000000;  // as in driver.cpp
constexpr size_t SIZE = size_t(64) << 30, CHUNK = 1 << 16, LEAST = 32;
constexpr int CLASSES = 40;

struct Free {
  Free* next;
};
std::atomic_flag taken;
Free* lists[CLASSES];               // of blocks, by the logarithm of their size
uint8_t class_of_chunk[SIZE / CHUNK];  // 0: not in use
uintptr_t end = 0;                  // of the memory in use
int file = -1;

struct Lock {
  Lock() {
    while (taken.test_and_set(std::memory_order_acquire)) {}
  }
  ~Lock() { taken.clear(std::memory_order_release); }
};

void start() {
  file = memfd_create("shared_heap", 0);
  const int flags = MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
  if (file < 0 || ftruncate(file, SIZE) || mmap((void*)BASE, SIZE, PROT_READ | PROT_WRITE, flags, file, 0) != (void*)BASE)
    _exit(3);
  end = BASE;
}

// Allocates blocks of a class: as many as fit into a chunk, or a single larger one.
void grow(int size_class) {
  if (!end) start();
  const size_t block = size_t(1) << size_class, bytes = block < CHUNK ? CHUNK : block;
  const uintptr_t first = (end + bytes - 1) / bytes * bytes;
  if (first + bytes > BASE + SIZE) return;
  end = first + bytes;
  std::memset(class_of_chunk + (first - BASE) / CHUNK, size_class, bytes / CHUNK);
  for (uintptr_t at = first; at < end; at += block) lists[size_class] = new ((void*)at) Free{lists[size_class]};
}

void* take(size_t bytes) {
  const int size_class = std::bit_width((bytes < LEAST ? LEAST : bytes) - 1);
  if (size_class >= CLASSES) return nullptr;
  const Lock lock;
  if (!lists[size_class]) grow(size_class);
  Free* block = lists[size_class];
  if (block) lists[size_class] = block->next;
  else errno = ENOMEM;
  return block;
}

bool ours(const void* p) { return (uintptr_t)p - BASE < SIZE; }

size_t size_of(const void* p) { return ours(p) ? size_t(1) << class_of_chunk[((uintptr_t)p - BASE) / CHUNK] : 0; }

}  // namespace

API int shared_heap_file() { return file; }
// Finds the block that contains an address. Returns its size, or 0 if there is none.
API size_t shared_heap_block(const void* p, const void** first) {
  const size_t size = size_of(p);
  *first = size > 1 ? (const void*)((uintptr_t)p / size * size) : nullptr;
  return size > 1 ? size : 0;
}

API void* malloc(size_t bytes) { return take(bytes); }
API void free(void* p) {
  if (!ours(p)) return;  // null, or allocated by the dynamic linker before
  const int size_class = class_of_chunk[((uintptr_t)p - BASE) / CHUNK];
  const Lock lock;
  lists[size_class] = new (p) Free{lists[size_class]};
}
API void* calloc(size_t count, size_t bytes) {
  void* p = take(count * bytes);
  return p ? std::memset(p, 0, count * bytes) : p;
}
API void* realloc(void* p, size_t bytes) {
  if (p && bytes <= size_of(p)) return p;
  void* larger = take(bytes);
  if (p && larger) std::memcpy(larger, p, size_of(p)), free(p);
  return larger;
}
API void* memalign(size_t alignment, size_t bytes) { return take(bytes < alignment ? alignment : bytes); }
API void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
API int posix_memalign(void** p, size_t alignment, size_t bytes) {
  *p = memalign(alignment, bytes);
  return *p ? 0 : ENOMEM;
}
API void* valloc(size_t bytes) { return memalign(4096, bytes); }
API void* pvalloc(size_t bytes) { return memalign(4096, bytes); }
API size_t malloc_usable_size(void* p) { return size_of(p); }

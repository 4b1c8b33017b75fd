// The threads of a block as fibers of one CPU thread, and the places where they wait for each other.
#pragma once
// Every kernel is compiled with this header, so what is not a template is in emulator.cpp, compiled once; <cmath> and
// the containers would take longer than the rest.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <source_location>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emulator __attribute__((visibility("hidden"))) {

using Place = std::source_location;
enum class Meeting : int { SYNC, SHUFFLE, BALLOT, LOAD_MATRICES, LOAD_MATRICES_TRANSPOSED, MULTIPLY_ADD };

struct Thread {
  dim3 thread;
  int warp = 0, lane = 0;
};
struct Stats {
  uint64_t switches, products, matrix_loads, bank_conflicts;
};
struct State {  // what kernels read
  Stats stats{};
  dim3 grid, block, block_index;
  unsigned char* shared = nullptr;  // of exactly the requested size, so that an overrun is detected
  Thread* current = nullptr;
};
extern State state;

// Ends the launch; the fibers are not resumed.
[[noreturn]] void fail(const Place& here, const char* format, ...);
void barrier(const Place& here);
// Every lane's `mine` for the last lane of `mask` to arrive, which then calls `leave`; null for the others, after that.
void** arrive(unsigned mask, Meeting kind, const Place& here, void* mine);
void leave(unsigned mask);
// Null, or the error.
const char* launch(const dim3& grid, const dim3& block, size_t shared_bytes, void (*thread)(const void*),
                   const void* params);

// All lanes of `mask` wait; the last to arrive calls work(brought), where brought[lane] is each lane's argument.
template <class Work>
void meet(unsigned mask, Meeting kind, const Place& here, void* mine, Work work) {
  if (void** brought = arrive(mask, kind, here, mine)) {
    work(brought);
    leave(mask);
  }
}

}  // namespace emulator

// The state of a launch that kernels do not read.
#pragma once
#include <vector>

#include "primitives.h"

namespace emulator __attribute__((visibility("hidden"))) {

enum class Order : int { ASCENDING, DESCENDING, RANDOM };

struct Copy {
  void* to;
  const void* from;
  bool valid;
};
struct Fiber : Thread {
  void* stack_pointer = nullptr;  // null: ended
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};
struct Group {  // of lanes that wait for each other
  unsigned mask = 0, arrived = 0;
  Meeting kind{};
  unsigned line = 0;
  void* brought[32];
};
struct Warp {
  unsigned runnable = 0;
  Group groups[32];  // by the lowest lane of the mask
};
struct Launch {
  Order order = Order::ASCENDING;
  bool late_copies = true;
  uint64_t random = 1;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<char*> stacks;
  void* launcher = nullptr;
  int alive = 0, at_barrier = 0;
  unsigned barrier_line = 0;
  void (*thread)(const void*) = nullptr;
  const void* params = nullptr;  // of `thread`
  char error[1024] = "";
};
extern Launch running;
inline Fiber& current() { return *static_cast<Fiber*>(state.current); }

}  // namespace emulator

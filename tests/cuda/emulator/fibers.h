// The threads of a block as fibers of one CPU thread, and the places where they wait for each other.
#pragma once
#if !defined(__x86_64__)
#error "the emulator switches stacks in x86-64 assembly"
#endif
// Every kernel is compiled with this header; <functional>, <memory> and <cmath> would take twice as long as the rest of it.
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <source_location>
#include <vector>

#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
// Saves the callee-saved registers and the stack pointer at *from, then continues where `to` was saved.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulator {

using Place = std::source_location;
enum class Order : int { ASCENDING, DESCENDING, RANDOM };
enum class Meeting : int { SYNC, SHUFFLE, BALLOT, LOAD_MATRICES, LOAD_MATRICES_TRANSPOSED, MULTIPLY_ADD };
constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t MAX_SHARED_BYTES = 227 << 10;  // of a block on sm_90

struct Copy {
  void* to;
  const void* from;
  bool valid;
};
struct Fiber {
  void* stack_pointer = nullptr;  // null: ended
  dim3 thread;
  int warp = 0, lane = 0;
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
struct Stats {
  uint64_t switches, products, matrix_loads, bank_conflicts;
};

struct State {
  Order order = Order::ASCENDING;
  bool late_copies = true;
  uint64_t random = 1;
  Stats stats{};
  dim3 grid, block, block_index;
  unsigned char* shared = nullptr;  // of exactly the requested size, so that an overrun is detected
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<char*> stacks;
  Fiber* current = nullptr;
  void* launcher = nullptr;
  int alive = 0, at_barrier = 0;
  unsigned barrier_line = 0;
  void (*thread)(const void*) = nullptr;
  const void* params = nullptr;  // of `thread`
  char error[1024] = "";
};
inline State state;

// Ends the launch; the fibers are not resumed.
[[noreturn]] inline void fail(const Place& here, const char* format, ...) {
  char* text = state.error;
  size_t room = sizeof state.error;
  auto say = [&](int written) { text += written, room -= written; };
  va_list arguments;
  va_start(arguments, format);
  say(vsnprintf(text, room, format, arguments));
  va_end(arguments);
  const char* name = strrchr(here.file_name(), '/');
  const dim3 &b = state.block_index, &t = state.current->thread;
  say(snprintf(text, room, " at %s:%u, block %u,%u,%u thread %u,%u,%u", name ? name + 1 : here.file_name(), here.line(),
               b.x, b.y, b.z, t.x, t.y, t.z));
  if (state.at_barrier)
    say(snprintf(text, room, "; %d of %d threads wait at the barrier of line %u", state.at_barrier, state.alive,
                 state.barrier_line));
  for (size_t i = 0; i < state.warps.size() && room > 200; i++)
    for (const Group& group : state.warps[i].groups)
      if (group.arrived && room > 200)
        say(snprintf(text, room, "; lanes %08x of %08x of warp %zu wait at line %u", group.arrived, group.mask, i,
                     group.line));
  void* abandoned;
  emulator_switch(&abandoned, state.launcher);
  abort();
}

inline void resume(Fiber& fiber) {
  Fiber* from = state.current;
  state.current = &fiber;
  state.stats.switches++;
  if (from != &fiber) emulator_switch(from ? &from->stack_pointer : &state.launcher, fiber.stack_pointer);
}

inline void run_another_warp(const Place& here) {
  int count = state.warps.size(), first = 0, step = 1;
  if (state.order == Order::DESCENDING) first = count - 1, step = count - 1;
  if (state.order == Order::RANDOM) {
    state.random = state.random * 6364136223846793005ull + 1442695040888963407ull;
    first = (state.random >> 33) % count;
  }
  for (int i = 0, warp = first; i < count; i++, warp = (warp + step) % count)
    if (unsigned runnable = state.warps[warp].runnable)
      return resume(state.fibers[warp * 32 + __builtin_ctz(runnable)]);
  if (state.alive) fail(here, "deadlock: no thread can go on");
  void* ended;
  emulator_switch(&ended, state.launcher);
}

// Switches to another lane of this warp if one can run, otherwise to another warp.
inline void run_another(const Place& here) {
  unsigned runnable = state.warps[state.current->warp].runnable;
  if (!runnable) return run_another_warp(here);
  unsigned later = state.current->lane == 31 ? 0 : runnable & ~0u << (state.current->lane + 1);
  resume(state.fibers[state.current->warp * 32 + __builtin_ctz(later ? later : runnable)]);
}

inline void pause() { state.warps[state.current->warp].runnable &= ~(1u << state.current->lane); }

inline void open_barrier() {
  state.at_barrier = 0;
  for (Fiber& fiber : state.fibers)
    if (fiber.stack_pointer) state.warps[fiber.warp].runnable |= 1u << fiber.lane;
}

inline void barrier(const Place& here) {
  if (state.at_barrier && state.barrier_line != here.line()) fail(here, "threads wait at different barriers");
  state.barrier_line = here.line();
  state.at_barrier++;
  if (state.at_barrier == state.alive) {
    open_barrier();
    run_another_warp(here);
  } else {
    pause();
    run_another(here);
  }
}

// All lanes of `mask` wait; the last to arrive calls work(brought), where brought[lane] is each lane's argument.
template <class Work>
void meet(unsigned mask, Meeting kind, const Place& here, void* mine, Work work) {
  Warp& warp = state.warps[state.current->warp];
  unsigned bit = 1u << state.current->lane;
  if (!(mask & bit)) fail(here, "a lane meets others without being in the mask %08x", mask);
  Group& group = warp.groups[__builtin_ctz(mask)];
  if (group.arrived && (group.mask != mask || group.kind != kind || group.line != here.line()))
    fail(here, "lanes of a warp meet at different places");
  group.mask = mask, group.kind = kind, group.line = here.line();
  group.arrived |= bit;
  group.brought[state.current->lane] = mine;
  if (group.arrived != mask) {
    pause();
    run_another(here);
    return;
  }
  group.arrived = 0;
  work(group.brought);
  warp.runnable |= mask;
}

// The function that every fiber runs. Its stack is not resumed after its end.
inline void run_fiber() {
  state.thread(state.params);
  static Fiber grave;
  Fiber& fiber = *state.current;
  grave.thread = fiber.thread, grave.warp = fiber.warp, grave.lane = fiber.lane;
  pause();
  fiber.stack_pointer = nullptr;
  state.current = &grave;
  state.alive--;
  if (state.alive && state.at_barrier == state.alive) open_barrier();
  run_another(Place::current());
}

inline void start_fiber(int index) {
  Fiber& fiber = state.fibers[index];
  const dim3& size = state.block;
  fiber = Fiber{};
  fiber.warp = index / 32, fiber.lane = index % 32;
  fiber.thread = {index % size.x, index / size.x % size.y, index / (size.x * size.y)};
#ifdef __SANITIZE_ADDRESS__  // the frames of the fiber before never returned
  __asan_unpoison_memory_region(state.stacks[index], STACK_BYTES);
#endif
  // Stacks that all began at the same offset of a page would share a few sets of the cache.
  void** top = reinterpret_cast<void**>(state.stacks[index] + STACK_BYTES - 64 - index % 128 * 832);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(run_fiber);
  top -= 6;
  memset(top, 0, 6 * sizeof(void*));
  fiber.stack_pointer = top;
  state.warps[fiber.warp].runnable |= 1u << fiber.lane;
}

inline void run_block(int num_threads, size_t shared_bytes) {
  memset(state.shared, 0xff, shared_bytes);  // NaN in every type of float
  state.warps.assign(num_threads / 32, {});
  for (int i = 0; i < num_threads; i++) start_fiber(i);
  state.alive = num_threads;
  state.at_barrier = 0;
  state.current = nullptr;
  resume(state.fibers[state.order == Order::DESCENDING ? num_threads - 32 : 0]);
}

// Null, or the error.
inline const char* launch(const dim3& grid, const dim3& block, size_t shared_bytes, void (*thread)(const void*),
                          const void* params) {
  int num_threads = block.x * block.y * block.z;
  if (num_threads % 32 || num_threads > 1024) return "a block has whole warps, at most 32";
  if (shared_bytes > MAX_SHARED_BYTES) return "too much shared memory";
  while (int(state.stacks.size()) < num_threads)
    state.stacks.push_back(static_cast<char*>(mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
  free(state.shared);
  state.shared = static_cast<unsigned char*>(aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024));
#ifdef __SANITIZE_ADDRESS__  // the right alignment needs the round size: the rest is not to be touched
  __asan_poison_memory_region(state.shared + shared_bytes, (1024 - shared_bytes % 1024) % 1024);
#endif
  state.grid = grid, state.block = block, state.thread = thread, state.params = params;
  state.fibers.assign(num_threads, {});
  state.error[0] = 0;
  dim3& at = state.block_index;
  for (at.z = 0; at.z < grid.z; at.z++)
    for (at.y = 0; at.y < grid.y; at.y++)
      for (at.x = 0; at.x < grid.x; at.x++) {
        run_block(num_threads, shared_bytes);
        if (state.error[0]) return state.error;
      }
  return nullptr;
}

}  // namespace emulator

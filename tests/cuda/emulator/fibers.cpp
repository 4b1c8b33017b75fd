// Runs the fibers of a launch. Like primitives.cpp, it is compiled once and linked into the library of every kernel.
#if !defined(__x86_64__)
#error "the emulator switches stacks in x86-64 assembly"
#endif
#include <cstdarg>
#include <cstdio>

#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "launch.h"

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

namespace emulator __attribute__((visibility("hidden"))) {

constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t MAX_SHARED_BYTES = 227 << 10;  // of a block on sm_90

State state;
Launch running;

[[noreturn]] void fail(const Place& here, const char* format, ...) {
  char* text = running.error;
  size_t room = sizeof running.error;
  auto say = [&](int written) { text += written, room -= written; };
  va_list arguments;
  va_start(arguments, format);
  say(vsnprintf(text, room, format, arguments));
  va_end(arguments);
  const char* name = strrchr(here.file_name(), '/');
  const dim3 &b = state.block_index, &t = state.current->thread;
  say(snprintf(text, room, " at %s:%u, block %u,%u,%u thread %u,%u,%u", name ? name + 1 : here.file_name(), here.line(),
               b.x, b.y, b.z, t.x, t.y, t.z));
  if (running.at_barrier)
    say(snprintf(text, room, "; %d of %d threads wait at the barrier of line %u", running.at_barrier, running.alive,
                 running.barrier_line));
  for (size_t i = 0; i < running.warps.size() && room > 200; i++)
    for (const Group& group : running.warps[i].groups)
      if (group.arrived && room > 200)
        say(snprintf(text, room, "; lanes %08x of %08x of warp %zu wait at line %u", group.arrived, group.mask, i,
                     group.line));
  void* abandoned;
  emulator_switch(&abandoned, running.launcher);
  abort();
}

static void resume(Fiber& fiber) {
  Fiber* from = state.current ? &current() : nullptr;
  state.current = &fiber;
  state.stats.switches++;
  if (from != &fiber) emulator_switch(from ? &from->stack_pointer : &running.launcher, fiber.stack_pointer);
}

static void run_another_warp(const Place& here) {
  int count = running.warps.size(), first = 0, step = 1;
  if (running.order == Order::DESCENDING) first = count - 1, step = count - 1;
  if (running.order == Order::RANDOM) {
    running.random = running.random * 6364136223846793005ull + 1442695040888963407ull;
    first = (running.random >> 33) % count;
  }
  for (int i = 0, warp = first; i < count; i++, warp = (warp + step) % count)
    if (unsigned runnable = running.warps[warp].runnable)
      return resume(running.fibers[warp * 32 + __builtin_ctz(runnable)]);
  if (running.alive) fail(here, "deadlock: no thread can go on");
  void* ended;
  emulator_switch(&ended, running.launcher);
}

static void run_another(const Place& here) {
  unsigned runnable = running.warps[state.current->warp].runnable;
  if (!runnable) return run_another_warp(here);
  unsigned later = state.current->lane == 31 ? 0 : runnable & ~0u << (state.current->lane + 1);
  resume(running.fibers[state.current->warp * 32 + __builtin_ctz(later ? later : runnable)]);
}

static void open_barrier() {
  running.at_barrier = 0;
  for (Fiber& fiber : running.fibers)
    if (fiber.stack_pointer) running.warps[fiber.warp].runnable |= 1u << fiber.lane;
}

static void pause() { running.warps[state.current->warp].runnable &= ~(1u << state.current->lane); }

void barrier(const Place& here) {
  if (running.at_barrier && running.barrier_line != here.line()) fail(here, "threads wait at different barriers");
  running.barrier_line = here.line();
  running.at_barrier++;
  if (running.at_barrier == running.alive) {
    open_barrier();
    run_another_warp(here);
  } else {
    pause();
    run_another(here);
  }
}

void** arrive(unsigned mask, Meeting kind, const Place& here, void* mine) {
  Warp& warp = running.warps[state.current->warp];
  unsigned bit = 1u << state.current->lane;
  if (!(mask & bit)) fail(here, "a lane meets others without being in the mask %08x", mask);
  Group& group = warp.groups[__builtin_ctz(mask)];
  if (group.arrived && (group.mask != mask || group.kind != kind || group.line != here.line()))
    fail(here, "lanes of a warp meet at different places");
  group.mask = mask, group.kind = kind, group.line = here.line();
  group.arrived |= bit;
  group.brought[state.current->lane] = mine;
  if (group.arrived == mask) {
    group.arrived = 0;
    return group.brought;
  }
  pause();
  run_another(here);
  return nullptr;
}

void leave(unsigned mask) { running.warps[state.current->warp].runnable |= mask; }

// The function that every fiber runs. Its stack is not resumed after its end.
static void run_fiber() {
  running.thread(running.params);
  static Fiber grave;
  Fiber& fiber = current();
  grave.thread = fiber.thread, grave.warp = fiber.warp, grave.lane = fiber.lane;
  pause();
  fiber.stack_pointer = nullptr;
  state.current = &grave;
  running.alive--;
  if (running.alive && running.at_barrier == running.alive) open_barrier();
  run_another(Place::current());
}

static void start_fiber(int index) {
  Fiber& fiber = running.fibers[index];
  const dim3& size = state.block;
  fiber = Fiber{};
  fiber.warp = index / 32, fiber.lane = index % 32;
  fiber.thread = {index % size.x, index / size.x % size.y, index / (size.x * size.y)};
#ifdef __SANITIZE_ADDRESS__  // the frames of the fiber before never returned
  __asan_unpoison_memory_region(running.stacks[index], STACK_BYTES);
#endif
  // Stacks that all began at the same offset of a page would share a few sets of the cache.
  void** top = reinterpret_cast<void**>(running.stacks[index] + STACK_BYTES - 64 - index % 128 * 832);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(run_fiber);
  top -= 6;
  memset(top, 0, 6 * sizeof(void*));
  fiber.stack_pointer = top;
  running.warps[fiber.warp].runnable |= 1u << fiber.lane;
}

static void run_block(int num_threads, size_t shared_bytes) {
  memset(state.shared, 0xff, shared_bytes);  // NaN in every type of float
  running.warps.assign(num_threads / 32, {});
  for (int i = 0; i < num_threads; i++) start_fiber(i);
  running.alive = num_threads;
  running.at_barrier = 0;
  state.current = nullptr;
  resume(running.fibers[running.order == Order::DESCENDING ? num_threads - 32 : 0]);
}

const char* launch(const dim3& grid, const dim3& block, size_t shared_bytes, void (*thread)(const void*),
                   const void* params) {
  int num_threads = block.x * block.y * block.z;
  if (num_threads % 32 || num_threads > 1024) return "a block has whole warps, at most 32";
  if (shared_bytes > MAX_SHARED_BYTES) return "too much shared memory";
  while (int(running.stacks.size()) < num_threads)
    running.stacks.push_back(static_cast<char*>(mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
  free(state.shared);
  state.shared = static_cast<unsigned char*>(aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024));
#ifdef __SANITIZE_ADDRESS__  // the right alignment needs the round size: the rest is not to be touched
  __asan_poison_memory_region(state.shared + shared_bytes, (1024 - shared_bytes % 1024) % 1024);
#endif
  state.grid = grid, state.block = block, running.thread = thread, running.params = params;
  running.fibers.assign(num_threads, {});
  running.error[0] = 0;
  dim3& at = state.block_index;
  for (at.z = 0; at.z < grid.z; at.z++)
    for (at.y = 0; at.y < grid.y; at.y++)
      for (at.x = 0; at.x < grid.x; at.x++) {
        run_block(num_threads, shared_bytes);
        if (running.error[0]) return running.error;
      }
  return nullptr;
}

}  // namespace emulator

extern "C" void emulator_schedule(int order, int late_copies, uint64_t seed) {
  emulator::running.order = emulator::Order(order);
  emulator::running.late_copies = late_copies;
  emulator::running.random = seed;
  emulator::state.stats = {};
}
// Hidden by default, as the type of its parameter is.
extern "C" __attribute__((visibility("default"))) void emulator_stats(emulator::Stats* stats) {
  *stats = emulator::state.stats;
}

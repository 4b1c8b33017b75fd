// A persistent fork-join pool. `run` assigns ranges of items in order to free threads; an item's bits must not depend on the
// thread that computes it. Idle workers spin for a while, because the next kernel of a step comes within microseconds, and
// then sleep. Workers and the caller compute items without denormals (float_mode.h).
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

#include "upcoming.h"

constexpr int ITEMS_PER_THREAD = 4;  // at least, so that the threads of a kernel end at about the same time

class Pool {
 public:
  // One thread per entry of `cpus`, the caller being the first; each worker is pinned to its entry, unless this is
  // negative. The caller is pinned only if `pin_caller`, since threads that it starts later inherit its pinning.
  Pool(const int32_t* cpus, int32_t threads, bool pin_caller, int32_t spin_us);
  ~Pool();
  Pool(const Pool&) = delete;

  int size() const { return threads_; }

  Upcoming upcoming;

  // Calls fn(begin, end) over disjoint ranges that cover [0, items), each at most `grain` long; returns when all are
  // done. Callers from several threads take turns; fn must not call run.
  template <class Fn> void run(int items, int grain, Fn&& fn) { deal(items, grain, false, call<Fn>, address(fn)); }

  // The same, but each thread first takes consecutive items from its own share: for items whose data are adjacent in
  // memory. A thread that has finished its share takes the last items of other threads.
  template <class Fn> void run_spans(int items, int grain, Fn&& fn) { deal(items, grain, true, call<Fn>, address(fn)); }

 private:
  using Call = void (*)(void*, int, int);
  struct State;

  // The only call of fn, for one thread and for several: the compiler would otherwise compile fn's code twice.
  template <class Fn> static void call(void* fn, int begin, int end) { (*static_cast<std::remove_reference_t<Fn>*>(fn))(begin, end); }
  template <class Fn> static void* address(Fn& fn) { return const_cast<void*>(static_cast<const void*>(&fn)); }
  void deal(int items, int grain, bool spans, Call call, void* argument);

  int threads_;
  std::unique_ptr<State> state_;
};

// The fork-join pool, see pool.h.
//
// Algorithm: an epoch counter is both the start signal and the word that sleeping workers wait on. A worker that sees a new
// epoch joins the call if it is still open; the caller closes it when no item is left, and waits for those that joined: a
// worker that sleeps, or whose core another process has, delays no call. A shared counter distributes items in order; or
// each thread has its own span of items, which it takes from the front, and then takes items of other threads from the
// back. Nothing is allocated after construction.
// Floor: two cache-line round trips between cores (start, join), about 0.1 us on Zen 4.
#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "api.h"
#include "isa/float_mode.h"
#include "machine.h"

#ifdef __linux__
#include <sched.h>
#endif

namespace {

void pin(int32_t cpu) {
#ifdef __linux__
  if (cpu < 0) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cpu, &only);
  sched_setaffinity(0, sizeof only, &only);  // fails in a narrower cpuset: the thread then runs unpinned
#else
  (void)cpu;
#endif
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// The remaining items of one thread: [begin, end).
struct alignas(64) Span {
  std::atomic<uint64_t> ends{0};

  static uint64_t pack(int begin, int end) { return (uint64_t)(uint32_t)begin << 32 | (uint32_t)end; }
  void reset(int begin, int end) { ends.store(pack(begin, end), std::memory_order_relaxed); }

  // Takes up to `grain` items from the front or from the back; false if none are left.
  bool take(int grain, bool front, int& from, int& to) {
    for (uint64_t seen = ends.load(std::memory_order_relaxed);;) {
      const int begin = (int)(seen >> 32), end = (int)(uint32_t)seen;
      if (begin >= end) return false;
      const int count = std::min(grain, end - begin);
      from = front ? begin : end - count, to = from + count;
      if (ends.compare_exchange_weak(seen, front ? pack(to, end) : pack(begin, from), std::memory_order_relaxed)) return true;
    }
  }
};

constexpr int OPEN = 1 << 30;  // added to the number of members

struct Pool::State {
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<int> next{0};
  alignas(64) std::atomic<int> members{0};  // workers that may read the call, and those about to see that it is closed
  alignas(64) Call call = nullptr;          // written while no worker is a member of an open call
  std::atomic<bool> ended{false};
  void* argument = nullptr;
  int items = 0, grain = 1;
  bool spans = false;
  std::vector<Span> left;  // of each thread, if `spans`
  std::chrono::microseconds spin;
  std::mutex turn;
  std::vector<std::thread> workers;

  void work(int thread) {
    if (!spans) {
      for (int begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < items;)
        call(argument, begin, std::min(items, begin + grain));
      return;
    }
    const int threads = (int)left.size();
    for (int i = 0, from, to; i < threads; i++)
      while (left[(thread + i) % threads].take(i ? 1 : grain, i == 0, from, to)) call(argument, from, to);
  }

  void start(int new_items, int new_grain, bool new_spans, Call new_call, void* new_argument) {
    items = new_items, grain = new_grain, spans = new_spans, call = new_call, argument = new_argument;
    next.store(0, std::memory_order_relaxed);
    const int64_t threads = (int64_t)left.size();
    for (int64_t t = 0; spans && t < threads; t++) left[t].reset((int)(items * t / threads), (int)(items * (t + 1) / threads));
    members.fetch_add(OPEN, std::memory_order_release);
    wake();
  }

  void wake() {
    epoch.fetch_add(1, std::memory_order_seq_cst);
    epoch.notify_all();
  }

  // Returns when all items are computed. It yields after a while: a member may be waiting for this core.
  void finish() {
    members.fetch_sub(OPEN, std::memory_order_relaxed);
    if (!spin_while([this] { return members.load(std::memory_order_acquire) != 0; }))
      while (members.load(std::memory_order_acquire)) std::this_thread::yield();
  }

  // Whether the condition ends while it is tested a few times.
  template <class Condition> static bool ends_soon(Condition condition) {
    for (int i = 0; i < 64; i++) {
      if (!condition()) return true;
      relax();
    }
    return false;
  }

  // Whether it ends within the time to spin.
  template <class Condition> bool spin_while(Condition condition) {
    if (ends_soon(condition)) return true;  // most do, and reading the clock takes longer
    const auto until = std::chrono::steady_clock::now() + spin;
    while (std::chrono::steady_clock::now() < until)
      if (ends_soon(condition)) return true;
    return false;
  }

  void loop(int thread) {
    for (uint32_t seen = 0;;) {
      if (!spin_while([&] { return epoch.load(std::memory_order_acquire) == seen; }))
        epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (ended.load(std::memory_order_relaxed)) return;
      if (members.load(std::memory_order_relaxed) < OPEN) continue;  // too late: the line stays shared
      if (members.fetch_add(1, std::memory_order_acquire) >= OPEN) work(thread);
      members.fetch_sub(1, std::memory_order_release);
    }
  }
};

Pool::Pool(const int32_t* cpus, int32_t threads, bool pin_caller, int32_t spin_us)
    : threads_(threads), state_(std::make_unique<State>()) {
  state_->left = std::vector<Span>(threads);
  state_->spin = std::chrono::microseconds(spin_us);
  if (pin_caller) pin(cpus[0]);
  for (int i = 1; i < threads; i++)
    state_->workers.emplace_back([state = state_.get(), cpu = cpus[i], i] {
      pin(cpu);
      pool_thread = i;
      const FlushDenormals always;
      state->loop(i);
    });
}

Pool::~Pool() {
  state_->ended.store(true, std::memory_order_relaxed);
  state_->wake();
  for (auto& worker : state_->workers) worker.join();
}

void Pool::deal(int items, int grain, bool spans, Call call, void* argument) {
  const FlushDenormals meanwhile;
  if (threads_ == 1 || items <= grain) {
    if (items > 0) call(argument, 0, items);
    return;
  }
  const std::lock_guard<std::mutex> one_caller(state_->turn);
  state_->start(items, grain, spans, call, argument);
  state_->work(0);
  state_->finish();
}

Pool* pool_create(const PoolParams* p) {
#ifdef __AMX_TILE__
  if (!ask_for_tiles()) return nullptr;
#endif
  return new Pool(p->cpus, p->threads, p->pin_caller != 0, p->spin_us);
}
void pool_destroy(Pool* pool) { delete pool; }
void pool_empty_runs(Pool* pool, int32_t times) {
  while (times-- > 0) pool->run(pool->size() * 2, 1, [](int, int) {});
}

// The fork-join pool, see pool.h.
//
// Algorithm: an epoch counter is both the start signal and the word that sleepers wait on; a shared counter deals out
// ranges; a count of busy workers is the join. Nothing is allocated after construction.
// Floor: two cache-line round trips between cores (start, join), about 0.1 us on Zen 4.
#include "pool.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "api.h"

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
  sched_setaffinity(0, sizeof only, &only);  // refused in a narrower cpuset: then we simply run unpinned
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

struct Pool::State {
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<int> next{0};
  alignas(64) std::atomic<int> busy{0};
  alignas(64) Call call = nullptr;  // of the current epoch; nullptr ends the workers
  void* argument = nullptr;
  int items = 0, grain = 1;
  std::chrono::microseconds spin;
  std::mutex turn;
  std::vector<std::thread> workers;

  void work() {
    for (int begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < items;)
      call(argument, begin, items - begin < grain ? items : begin + grain);
  }

  void start(int new_items, int new_grain, Call new_call, void* new_argument) {
    items = new_items, grain = new_grain, call = new_call, argument = new_argument;
    next.store(0, std::memory_order_relaxed);
    busy.store((int)workers.size(), std::memory_order_relaxed);
    epoch.fetch_add(1, std::memory_order_seq_cst);
    epoch.notify_all();
  }

  void wait_for(uint32_t seen) {
    const auto until = std::chrono::steady_clock::now() + spin;
    do {
      for (int i = 0; i < 64; i++) {
        if (epoch.load(std::memory_order_acquire) != seen) return;
        relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    epoch.wait(seen, std::memory_order_acquire);
  }

  void loop() {
    for (uint32_t seen = 0;; seen++) {
      wait_for(seen);
      if (!call) return;
      work();
      busy.fetch_sub(1, std::memory_order_release);
    }
  }
};

Pool::Pool(const int32_t* cpus, int32_t threads, bool pin_caller, int32_t spin_us)
    : threads_(threads), state_(std::make_unique<State>()) {
  state_->spin = std::chrono::microseconds(spin_us);
  if (pin_caller) pin(cpus[0]);
  for (int i = 1; i < threads; i++)
    state_->workers.emplace_back([state = state_.get(), cpu = cpus[i]] {
      pin(cpu);
      state->loop();
    });
}

Pool::~Pool() {
  state_->start(0, 1, nullptr, nullptr);
  for (auto& worker : state_->workers) worker.join();
}

void Pool::fork_join(int items, int grain, Call call, void* argument) {
  const std::lock_guard<std::mutex> one_caller(state_->turn);
  state_->start(items, grain, call, argument);
  state_->work();
  while (state_->busy.load(std::memory_order_acquire)) relax();
}

Pool* pool_create(const PoolParams* p) { return new Pool(p->cpus, p->threads, p->pin_caller != 0, p->spin_us); }
void pool_destroy(Pool* pool) { delete pool; }
void pool_empty_runs(Pool* pool, int32_t times) {
  while (times-- > 0) pool->run(pool->size() * 2, 1, [](int, int) {});
}

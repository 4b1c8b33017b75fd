// Memory that a later kernel will read. A product with many rows is bound by arithmetic: passes that have nothing of their
// own to prefetch take pieces from here. That changes when memory arrives, never a result.
#pragma once
#include <cstdint>
#include <vector>

inline thread_local int pool_thread = 0;  // the number of the calling thread in its pool; of callers 0

class Upcoming {
 public:
  // Forgets all pieces; the first `threads` threads of the pool may get new ones. No product may run meanwhile, nor
  // during `add`.
  void clear(int threads) {
    threads_ = threads;
    if ((int)shares_.size() < threads) shares_.resize(threads);
    for (Share& share : shares_) share.pieces.clear(), share.next = 0;
  }

  // Adds `bytes` from `at` on, in pieces of at most `piece` bytes, for the thread that will read them, since each core
  // has a cache of its own.
  void add(int thread, const void* at, int64_t bytes, int64_t piece) {
    for (int64_t from = 0; from < bytes; from += piece) shares_[thread].pieces.push_back((const char*)at + from);
  }

  // The next piece of the calling thread; null: there is none.
  const char* next() {
    if (pool_thread >= threads_) return nullptr;
    Share& share = shares_[pool_thread];
    return share.next < share.pieces.size() ? share.pieces[share.next++] : nullptr;
  }

 private:
  struct alignas(64) Share {
    std::vector<const char*> pieces;
    size_t next = 0;
  };
  std::vector<Share> shares_;
  int threads_ = 0;
};

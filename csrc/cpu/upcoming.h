// Items of later kernels that the next product computes. A product with many rows is bound by arithmetic: its passes that
// have nothing of their own to prefetch fetch the items' memory, and after a panel the thread computes the items that have
// arrived. Which thread computes an item, and when, changes none of its bits.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

inline thread_local int pool_thread = 0;  // the number of the calling thread in its pool; of callers 0

class Upcoming {
 public:
  struct Memory {
    const char* from = nullptr;
    int64_t bytes = 0;  // 0: the item is left to its kernel
  };
  struct Kernel {
    int items = 0;
    std::function<Memory(int)> memory;  // that computing an item reads
    std::function<void(int)> compute;
  };

  // The kernels after the next product; the second one's items need all of the first one's. The first `threads` threads of
  // the pool share the items. No product may run meanwhile, nor while the kernels run.
  void set(int threads, Kernel first, Kernel second) {
    shares_.resize(threads);
    kernels_[0] = std::move(first), kernels_[1] = std::move(second);
    for (int t = 0; t < threads; t++)
      for (int k = 0; k < 2; k++) {
        const int64_t items = kernels_[k].items;
        shares_[t].spans[k] = {(int)(items * t / threads), (int)(items * (t + 1) / threads)};
      }
    missing_.store(kernels_[0].items, std::memory_order_relaxed);
  }
  void clear() { set(0, {}, {}); }

  // Whether a product has passed the item of kernel 0 or 1.
  bool has_passed(int kernel, int item) const {
    for (const Share& share : shares_)
      if (item < share.spans[kernel].past) return item < share.spans[kernel].passed;
    return false;
  }

  // Whether products have passed all items of the first kernel.
  bool has_passed_first() const { return !shares_.empty() && !missing_.load(std::memory_order_relaxed); }

  // For products: memory to prefetch, at most `bytes`; null: there is none for the calling thread.
  const char* next(int64_t bytes) {
    Share* share = mine();
    if (!share) return nullptr;
    const int kernel = share->spans[0].fetched == share->spans[0].past;
    Span& span = share->spans[kernel];
    if (span.fetched - span.passed > MOST_WAITING) return nullptr;
    const char *from = nullptr, *past = nullptr;
    for (; span.fetched < span.past; span.fetched++, share->bytes = 0) {
      const Memory all = kernels_[kernel].memory(span.fetched);
      if (!all.bytes) continue;
      const char* at = all.from + share->bytes;
      if (from && at != past) break;
      if (!from) from = past = at;
      const int64_t taken = std::min(bytes, all.bytes - share->bytes);
      past += taken, bytes -= taken, share->bytes += taken;
      if (share->bytes < all.bytes) break;
    }
    return from;
  }

  // For products: computes the items whose memory the calling thread has fetched.
  void compute_fetched() {
    Share* share = mine();
    if (!share) return;
    const int computed = compute_fetched(0, share->spans[0]);
    if (computed) missing_.fetch_sub(computed, std::memory_order_acq_rel);
    if (!missing_.load(std::memory_order_acquire)) compute_fetched(1, share->spans[1]);
  }

 private:
  static constexpr int MOST_WAITING = 64;
  struct Span {
    Span(int first = 0, int past = 0) : past(past), passed(first), fetched(first) {}
    int past, passed, fetched;  // items
  };
  struct alignas(64) Share {
    Span spans[2];
    int64_t bytes = 0;  // of the first item that is not wholly fetched
  };

  Share* mine() { return pool_thread < (int)shares_.size() ? &shares_[pool_thread] : nullptr; }

  int compute_fetched(int kernel, Span& span) {
    const int first = span.passed;
    for (; span.passed < span.fetched; span.passed++) kernels_[kernel].compute(span.passed);
    return span.passed - first;
  }

  Kernel kernels_[2];
  std::vector<Share> shares_;
  std::atomic<int> missing_{0};  // items of the first kernel
};

#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>

// Memory of one thread, grown to the largest need and kept.
class Arena {
 public:
  void* reserve(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(std::aligned_alloc(64, size_ = (bytes + 4095) / 4096 * 4096));
      if (!memory_) std::abort();
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

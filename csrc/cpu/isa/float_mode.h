// Arithmetic without denormals: inputs are read as zeros, results become zeros. The dot instructions of AVX512 always do
// this, so every kernel thread computes in this mode, and a kernel has the same results on every instruction set.
#pragma once
#include <cstdint>

// Sets the mode of this thread until the end of the scope, then restores the earlier mode for the caller's arithmetic.
class FlushDenormals {
 public:
  FlushDenormals() : before_(read()) {
    if ((before_ & MODE) != MODE) write(before_ | MODE);
  }
  ~FlushDenormals() {
    if ((before_ & MODE) != MODE) write(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  // The clobbers keep the compiler from moving loads, stores and the arithmetic between them across the change.
#if defined(__x86_64__)
  using Register = uint32_t;                        // MXCSR
  static constexpr Register MODE = 1 << 15 | 1 << 6;  // flush to zero, denormals are zeros
  static Register read() {
    Register mode;
    asm volatile("stmxcsr %0" : "=m"(mode) : : "memory");
    return mode;
  }
  static void write(Register mode) { asm volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }
#elif defined(__aarch64__)
  using Register = uint64_t;                  // FPCR
  static constexpr Register MODE = 1 << 24;  // FZ: both
  static Register read() {
    Register mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
    return mode;
  }
  static void write(Register mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
  using Register = uint32_t;
  static constexpr Register MODE = 0;
  static Register read() { return 0; }
  static void write(Register) {}
#endif

  const Register before_;
};

// Everything that a kernel needs beyond plain C++: the only file with inline PTX. Each primitive has two bodies, PTX for
// the device and C++ for the emulator of tests/cuda, which runs the same kernels on a CPU; selftest.cu compares them on a
// device. Kernels include no other CUDA header and do not depend on the emulator.
//
// Expressions are computed as written: sources are compiled with -fmad=false, so a*b + c rounds twice and fmaf() once,
// wherever an expression is inlined; only the ..._approx functions differ between device and emulator.
#pragma once
#ifdef EMULATOR
#include "cuda_emulator.h"
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// -D MIN_BLOCKS: the number of blocks that must fit on a multiprocessor; without it the compiler guesses, and may spill
// registers.
#ifdef MIN_BLOCKS
#define BLOCK_BOUNDS __launch_bounds__(THREADS, MIN_BLOCKS)
#else
#define BLOCK_BOUNDS __launch_bounds__(THREADS)
#endif
// A kernel's declaration; its body follows in braces and reads its one struct of parameters as `p`.
#define KERNEL(name, Params) extern "C" __global__ void BLOCK_BOUNDS name(const __grid_constant__ Params p)
#define DYNAMIC_SHARED(pointer)                                          \
  extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[]; \
  unsigned char* pointer = dynamic_shared_bytes
#define HERE
#define HERE_ARG
#endif
#define DEVICE __device__ __forceinline__

constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float MASKED = -1e30f;  // the score of a hidden key; finite, so that the difference of two is not NaN

// ---- 16-bit and 8-bit floats -------------------------------------------------------------------------------------

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};
struct fp8 {  // e4m3: no infinities, 0x7f and 0xff are NaN, the largest number is 448
  uint8_t bits;
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
DEVICE float to_float(fp16 x) {
#ifdef EMULATOR
  return emulator::from_bits<_Float16>(x.bits);
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#endif
}

// Two floats, rounded to nearest even, packed with `low` in the low half.
template <class T>
DEVICE uint32_t pack2(float low, float high);
template <>
DEVICE uint32_t pack2<bf16>(float low, float high) {
#ifdef EMULATOR
  return emulator::bf16_bits(low) | emulator::bf16_bits(high) << 16;
#else
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}
template <>
DEVICE uint32_t pack2<fp16>(float low, float high) {
#ifdef EMULATOR
  return emulator::to_bits(_Float16(low)) | uint32_t(emulator::to_bits(_Float16(high))) << 16;
#else
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}

template <class T>
DEVICE T from_float(float x) {
  return T{uint16_t(pack2<T>(x, 0.f))};
}
template <>
DEVICE float from_float<float>(float x) {
  return x;
}

// Two e4m3 (low byte first) as two floats of 16 bits, exact.
template <class T>
DEVICE uint32_t widen2(uint16_t two);
template <>
DEVICE uint32_t widen2<fp16>(uint16_t two) {
#if defined(EMULATOR)
  return pack2<fp16>(emulator::e4m3_value(two & 0xff), emulator::e4m3_value(two >> 8));
#elif __CUDA_ARCH__ >= 890
  uint32_t wide;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(two));
  return wide;
#else  // the shifted fields are 2^-8 times the value, subnormals included; NaN becomes 480
  uint32_t spread = (two & 0xffu) | (two & 0xff00u) << 8, wide = (spread & 0x00800080u) << 8 | (spread & 0x007f007fu) << 7;
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(wide) : "r"(0x5c005c00u));
  return wide;
#endif
}
template <>
DEVICE uint32_t widen2<bf16>(uint16_t two) {
  uint32_t wide = widen2<fp16>(two);
  return pack2<bf16>(to_float(fp16{uint16_t(wide)}), to_float(fp16{uint16_t(wide >> 16)}));
}

// Two floats as e4m3, `low` in the low byte, rounded to nearest even; numbers out of range become the largest, NaN stays.
DEVICE uint16_t narrow2(float low, float high) {
#if !defined(EMULATOR) && __CUDA_ARCH__ >= 890
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
#else
  auto narrow = [](float x) -> uint32_t {
    uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7f;
    if (magnitude >= 0x43e00000) return sign | 0x7e;
    if (magnitude < 0x3c800000)  // below 2^-6, in units of 2^-9: 1.5 * 2^23 rounds to an integer
      return sign | (__float_as_uint(__uint_as_float(magnitude) * 512.f + 12582912.f) & 0xf);
    return sign | ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - 960;
  };
  return uint16_t(narrow(low) | narrow(high) << 8);
#endif
}

// ---- mathematics -------------------------------------------------------------------------------------------------

DEVICE float exp2_approx(float x) {  // 2 ulp; 0 for MASKED
#ifdef EMULATOR
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
DEVICE float reciprocal_approx(float x) {  // 1 ulp; 0 for infinity
#ifdef EMULATOR
  return 1.f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
DEVICE float tanh_approx(float x) {  // 2^-11 relative
#ifdef EMULATOR
  return tanhf(x);
#else
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// ---- memory ------------------------------------------------------------------------------------------------------

// Copies 16 bytes from global to shared memory, both aligned to 16. If not `valid`, nothing is read and zeros are written.
// The bytes are visible to this thread after the wait for their group, and to other threads after a barrier as well.
DEVICE void copy_async16(void* shared, const void* global, bool valid HERE_ARG) {
#ifdef EMULATOR
  emulator::copy_async(shared, global, valid, here);
#else
  uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
  asm volatile(
      "{\n.reg .pred ignored;\nsetp.eq.s32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignored;\n}" ::"r"(to), "l"(global), "r"(int(valid)) : "memory");
#endif
}
// Closes a group of this thread's copies; an empty group counts as well.
DEVICE void copy_commit() {
#ifdef EMULATOR
  emulator::copy_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most the last PENDING groups of this thread are still in progress.
template <int PENDING>
DEVICE void copy_wait() {
#ifdef EMULATOR
  emulator::copy_wait(PENDING);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// ---- matrices of a warp --------------------------------------------------------------------------------------------

// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane l passes the address of row l % 8 of matrix l / 8,
// aligned to 16 bytes, and receives row l / 4, columns 2 * (l % 4) and the next, of each matrix.
DEVICE void load_matrices(uint32_t (&fragment)[4], const void* row HERE_ARG) {
#ifdef EMULATOR
  emulator::load_matrices(fragment, row, false, here);
#else
  uint32_t from = (uint32_t)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(from)
               : "memory");
#endif
}
// The same with each matrix transposed.
DEVICE void load_matrices_transposed(uint32_t (&fragment)[4], const void* row HERE_ARG) {
#ifdef EMULATOR
  emulator::load_matrices(fragment, row, true, here);
#else
  uint32_t from = (uint32_t)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(from)
               : "memory");
#endif
}

// sum [16, 8] += a [16, 16] * b [16, 8], in float. Lane l holds elements of rows l / 4 (the first two) and l / 4 + 8 of
// `sum`, columns 2 * (l % 4) and the next. `a` and `b` are as load_matrices returns them: a's matrices are rows 0-7 | 8-15
// of columns 0-7, then of columns 8-15; b's, transposed, are columns 0-7 and 8-15 of the inner dimension.
template <class T>
DEVICE void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 HERE_ARG);
#ifdef EMULATOR
template <>
DEVICE void multiply_add<bf16>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, emulator::Place here) {
  emulator::multiply_add(sum, a, b0, b1, [](uint16_t bits) { return to_float(bf16{bits}); }, here);
}
template <>
DEVICE void multiply_add<fp16>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, emulator::Place here) {
  emulator::multiply_add(sum, a, b0, b1, [](uint16_t bits) { return to_float(fp16{bits}); }, here);
}
#else
#define MULTIPLY_ADD(T, type)                                                                                         \
  template <>                                                                                                         \
  DEVICE void multiply_add<T>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {                    \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                               \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                               \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                     \
  }
MULTIPLY_ADD(bf16, "bf16")
MULTIPLY_ADD(fp16, "f16")
#undef MULTIPLY_ADD
#endif

// ---- reductions over lanes and threads, in a fixed order of additions ----------------------------------------------

DEVICE float quad_max(float x) {  // over lanes 4i .. 4i + 3
  x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
  return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(ALL_LANES, x, 1);
  return x + __shfl_xor_sync(ALL_LANES, x, 2);
}
DEVICE float warp_max(float x) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
  return x;
}
DEVICE float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
  return x;
}
// The sum of all threads' x, returned to every thread. `scratch` is [WARPS] floats of shared memory, which may be used
// again after the next barrier.
template <int WARPS>
DEVICE float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float total = scratch[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++) total += scratch[warp];
  return total;
}

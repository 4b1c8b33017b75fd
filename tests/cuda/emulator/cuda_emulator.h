// Runs a kernel of csrc/cuda on the CPU, one block at a time. Each CUDA thread is a fiber; at barriers and collective
// operations of a warp, the last fiber to arrive does the work of all. It exposes errors that a GPU may hide:
//  * reads of data that have not arrived: shared memory starts as NaN, and an asynchronous copy arrives as late as its wait
//    allows (or at once, without `late_copies`), with NaN in its destination until then;
//  * races between warps: they run in ascending, descending or random `order` until they have to wait;
//  * lanes that wait at different operations, barriers that some threads never reach, misaligned copies and matrix rows:
//    the launch ends with an error that names the line;
//  * shared-memory bank conflicts of matrix loads: counted.
// Not covered: weak memory order, blocks that run at the same time, the rounding of tensor cores and of approximate
// functions, speed.
#pragma once
#include "primitives.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static_assert(false, "use DYNAMIC_SHARED: only that is poisoned and bounded");
#define HERE , emulator::Place::current()
#define HERE_ARG , emulator::Place here = emulator::Place::current()
#define DYNAMIC_SHARED(pointer) unsigned char* pointer = emulator::state.shared

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define threadIdx (emulator::state.current->thread)
#define blockIdx (emulator::state.block_index)
#define blockDim (emulator::state.block)
#define gridDim (emulator::state.grid)

inline void __syncthreads(emulator::Place here = emulator::Place::current()) { emulator::barrier(here); }
inline void __syncwarp(unsigned mask = ~0u, emulator::Place here = emulator::Place::current()) {
  emulator::meet(mask, emulator::Meeting::SYNC, here, nullptr, [](void**) {});
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, emulator::Place here = emulator::Place::current()) {
  return emulator::shuffle(mask, value, lane, here);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, emulator::Place here = emulator::Place::current()) {
  return emulator::shuffle(mask, value, emulator::state.current->lane ^ distance, here);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance, emulator::Place here = emulator::Place::current()) {
  int lane = emulator::state.current->lane;
  return emulator::shuffle(mask, value, lane >= distance ? lane - distance : lane, here);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, emulator::Place here = emulator::Place::current()) {
  struct Lane {
    int predicate;
    unsigned found;
  } mine{predicate, 0};
  emulator::meet(mask, emulator::Meeting::BALLOT, here, &mine, [mask](void** brought) {
    unsigned found = 0;
    for (int i = 0; i < 32; i++)
      if (mask >> i & 1) found |= unsigned(static_cast<Lane*>(brought[i])->predicate != 0) << i;
    for (int i = 0; i < 32; i++)
      if (mask >> i & 1) static_cast<Lane*>(brought[i])->found = found;
  });
  return mine.found;
}

// Fibers switch only when they wait, so these operations are atomic.
template <class T>
T atomicAdd(T* address, T value) {
  T old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  T old = *address;
  if (value > old) *address = value;
  return old;
}
inline void __threadfence() {}
inline float __uint_as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint64_t(a) * b >> 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

#define KERNEL(name, Params)                                                                                     \
  static void name##_thread(const Params& p);                                                                    \
  extern "C" const char* name(const Params* p, const dim3* grid, const dim3* block, uint64_t shared_bytes) {     \
    auto thread = [](const void* params) { name##_thread(*static_cast<const Params*>(params)); };                 \
    return emulator::launch(*grid, *block, shared_bytes, thread, p);                                             \
  }                                                                                                              \
  extern "C" uint64_t name##_params_bytes() { return sizeof(Params); }                                           \
  static void name##_thread(const Params& p)

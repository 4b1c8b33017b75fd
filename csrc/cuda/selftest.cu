// Applies each primitive of device.cuh to arrays, so that its PTX on a device can be compared with its C++ in the emulator,
// and the latter with its definition. Raw bits in, raw bits out.
//
// Each thread has one element, or its lane's part of an operation of a warp or block.
// -D SCALAR: bf16 or fp16. THREADS, SHARED_BYTES: 32 per thread.
#include "device.cuh"

enum Primitive : int32_t {
  WIDEN2,                   // a: uint16, two e4m3       out: uint32, two SCALAR
  NARROW2,                  // a: 2 floats               out: uint16, two e4m3
  PACK2,                    // a: 2 floats               out: uint32, two SCALAR
  FROM_FLOAT,               // a: float                  out: SCALAR
  TO_FLOAT,                 // a: SCALAR                 out: float
  EXP2_APPROX,              // a: float                  out: float
  RECIPROCAL_APPROX,        // a: float                  out: float
  TANH_APPROX,              // a: float                  out: float
  COPY_ASYNC16,             // a: 2 of 16 bytes, b: 2 int32, whether they are valid    out: 2 of 16 bytes
  LOAD_MATRICES,            // a: a row of 16 bytes      out: 4 uint32
  LOAD_MATRICES_TRANSPOSED,
  MULTIPLY_ADD_MATRICES,    // a: 4 uint32, b: 2 uint32, c: 4 floats    out: 4 floats
  QUAD_MAX,                 // a: float                  out: float; so are the rest
  QUAD_SUM,
  WARP_MAX,
  WARP_SUM,
  BLOCK_SUM,
};

struct SelftestParams {
  void* out;
  const void *a, *b, *c;
  int32_t primitive;
  int32_t count;  // threads that have an element; whole blocks for operations of warps and blocks
};

constexpr int WARPS = THREADS / 32;
static_assert(SHARED_BYTES == THREADS * 32);

DEVICE void of_each(const SelftestParams& p, int i) {
  const float* floats = static_cast<const float*>(p.a);
  const uint16_t* halves = static_cast<const uint16_t*>(p.a);
  uint16_t* out16 = static_cast<uint16_t*>(p.out);
  uint32_t* out32 = static_cast<uint32_t*>(p.out);
  switch (p.primitive) {
    case WIDEN2: out32[i] = widen2<SCALAR>(halves[i]); break;
    case NARROW2: out16[i] = narrow2(floats[2 * i], floats[2 * i + 1]); break;
    case PACK2: out32[i] = pack2<SCALAR>(floats[2 * i], floats[2 * i + 1]); break;
    case FROM_FLOAT: out16[i] = from_float<SCALAR>(floats[i]).bits; break;
    case TO_FLOAT: out32[i] = __float_as_uint(to_float(SCALAR{halves[i]})); break;
    case EXP2_APPROX: out32[i] = __float_as_uint(exp2_approx(floats[i])); break;
    case RECIPROCAL_APPROX: out32[i] = __float_as_uint(reciprocal_approx(floats[i])); break;
    case TANH_APPROX: out32[i] = __float_as_uint(tanh_approx(floats[i])); break;
  }
}

// A thread reads the first of its two copies itself, after the wait for its group; another thread reads the second after a
// barrier.
DEVICE void copy(const SelftestParams& p, int i, uint4* shared) {
  const uint4* from = static_cast<const uint4*>(p.a) + 2 * i;
  const int32_t* valid = static_cast<const int32_t*>(p.b) + 2 * i;
  const int own = 2 * threadIdx.x, neighbour = 2 * ((threadIdx.x + 1) % THREADS);
  for (int half = 0; half < 2; half++) {
    copy_async16(shared + own + half, valid[half] ? from + half : nullptr, valid[half]);
    copy_commit();
  }
  uint4* out = static_cast<uint4*>(p.out) + 2 * i;
  copy_wait<1>();
  out[0] = shared[own];
  copy_wait<0>();
  __syncthreads();
  out[1] = shared[neighbour + 1];
}

DEVICE void load(const SelftestParams& p, int i, uint4* shared) {
  shared[threadIdx.x] = static_cast<const uint4*>(p.a)[i];
  __syncthreads();
  uint32_t fragment[4];
  if (p.primitive == LOAD_MATRICES)
    load_matrices(fragment, shared + threadIdx.x);
  else
    load_matrices_transposed(fragment, shared + threadIdx.x);
  for (int e = 0; e < 4; e++) static_cast<uint32_t*>(p.out)[4 * i + e] = fragment[e];
}

DEVICE void multiply(const SelftestParams& p, int i) {
  uint32_t a[4];
  float sum[4];
  for (int e = 0; e < 4; e++) a[e] = static_cast<const uint32_t*>(p.a)[4 * i + e];
  for (int e = 0; e < 4; e++) sum[e] = static_cast<const float*>(p.c)[4 * i + e];
  const uint32_t* b = static_cast<const uint32_t*>(p.b) + 2 * i;
  multiply_add<SCALAR>(sum, a, b[0], b[1]);
  for (int e = 0; e < 4; e++) static_cast<float*>(p.out)[4 * i + e] = sum[e];
}

DEVICE float reduced(const SelftestParams& p, float x, float* scratch) {
  switch (p.primitive) {
    case QUAD_MAX: return quad_max(x);
    case QUAD_SUM: return quad_sum(x);
    case WARP_MAX: return warp_max(x);
    case WARP_SUM: return warp_sum(x);
    default: return block_sum<WARPS>(x, scratch);
  }
}

KERNEL(selftest, SelftestParams) {
  DYNAMIC_SHARED(shared);
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (p.primitive < COPY_ASYNC16) {
    if (i < p.count) of_each(p, i);
  } else if (p.primitive == COPY_ASYNC16) {
    copy(p, i, reinterpret_cast<uint4*>(shared));
  } else if (p.primitive <= LOAD_MATRICES_TRANSPOSED) {
    load(p, i, reinterpret_cast<uint4*>(shared));
  } else if (p.primitive == MULTIPLY_ADD_MATRICES) {
    multiply(p, i);
  } else {
    const float x = static_cast<const float*>(p.a)[i];
    static_cast<float*>(p.out)[i] = reduced(p, x, reinterpret_cast<float*>(shared));
  }
}

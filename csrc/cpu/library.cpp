// A library's description of itself, so that a loader can choose a library and check that its structs are the same.
#include "api.h"
#include "blocks/parameters.h"
#include "fp8/fp8.h"
#include "isa/isa.h"
#include "latent/indexer.h"
#include "latent/latent.h"
#include "lora/lora.h"
#include "machine.h"
#include "recurrent/factors.h"
#include "recurrent/scans.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

bool ask_for_tiles() {
  constexpr unsigned AMX = 1u << 22 | 1u << 24 | 1u << 25;  // BF16, TILE, INT8 in edx of leaf 7
  constexpr unsigned OSXSAVE = 1u << 27;                    // in ecx of leaf 1
  constexpr unsigned TILE_STATE = 3u << 17;                 // XTILECFG and XTILEDATA in XCR0
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & AMX) != AMX) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & TILE_STATE) == TILE_STATE && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
bool ask_for_tiles() { return false; }
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

const char* isa_name() { return ISA_NAME; }

const char* machine_isa() {
#if defined(__x86_64__)
  // gcc's test also checks that the operating system saves the registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx2 && avx512 && !__builtin_cpu_supports("avx512bf16")) return "avx512fma";
  if (avx2 && avx512) return ask_for_tiles() ? "amx" : "avx512";
  if (avx2) return "avx2";
#elif defined(__aarch64__) && defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? "neon_dotprod" : "neon";
#elif defined(__aarch64__)
  return "neon";
#endif
  return "portable";
}

int32_t struct_size(const char* name) {
#define SIZE_OF(Struct) \
  if (!std::strcmp(name, #Struct)) return sizeof(Struct);
  SIZE_OF(PoolParams)
  SIZE_OF(GemmParams)
  SIZE_OF(QuantizeParams)
  SIZE_OF(GemmInt8Params)
  SIZE_OF(GemmInt4Params)
  SIZE_OF(GemmBlocksParams)
  SIZE_OF(GemmFp8Params)
  SIZE_OF(ExpertGemmFp8Params)
  SIZE_OF(ExpertGemmBlocksParams)
  SIZE_OF(SumPartsParams)
  SIZE_OF(EmbedParams)
  SIZE_OF(NormParams)
  SIZE_OF(ActivateParams)
  SIZE_OF(RotateParams)
  SIZE_OF(RouteParams)
  SIZE_OF(DispatchParams)
  SIZE_OF(CombineParams)
  SIZE_OF(AddIdentitiesParams)
  SIZE_OF(AddSharedParams)
  SIZE_OF(ExpertGemmParams)
  SIZE_OF(ExpertGemmInt8Params)
  SIZE_OF(ExpertGemmInt4Params)
  SIZE_OF(CountedQuantizeParams)
  SIZE_OF(CountedActivateParams)
  SIZE_OF(CausalConvParams)
  SIZE_OF(Mamba1ScanParams)
  SIZE_OF(NormPartsParams)
  SIZE_OF(Mamba2ScanParams)
  SIZE_OF(GatedDeltaParams)
  SIZE_OF(GatedNormParams)
  SIZE_OF(SigmoidGateParams)
  SIZE_OF(ScaleParams)
  SIZE_OF(ScaleByPositionParams)
  SIZE_OF(CopyParams)
  SIZE_OF(ScanParams)
  SIZE_OF(MaskParams)
  SIZE_OF(DrawParams)
  SIZE_OF(LogprobParams)
  SIZE_OF(AttentionParams)
  SIZE_OF(LatentAttentionParams)
  SIZE_OF(HeadGemmParams)
  SIZE_OF(CacheLatentsParams)
  SIZE_OF(RotateHeadsParams)
  SIZE_OF(CacheIndexKeysParams)
  SIZE_OF(SelectKeysParams)
  SIZE_OF(LoraPart)
  SIZE_OF(LoraParams)
  SIZE_OF(CapParams)
  SIZE_OF(ClipParams)
  SIZE_OF(PackPart)
  SIZE_OF(PackParams)
  SIZE_OF(PackBlocksParams)
  SIZE_OF(PackInt4Params)
  SIZE_OF(UnpackCodesParams)
  SIZE_OF(QuantizeWeightsParams)
  SIZE_OF(ReadFileParams)
  SIZE_OF(ReadPartsParams)
  SIZE_OF(ProgramParams)
#undef SIZE_OF
  return -1;
}

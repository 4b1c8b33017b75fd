// What a library says about itself, so that a loader can choose one and check that it speaks the same structs.
#include "api.h"
#include "isa.h"

const char* isa_name() { return ISA_NAME; }

const char* machine_isa() {
#if defined(__x86_64__)
  // gcc's test includes whether the operating system saves the registers.
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  if (avx512) return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return "avx2";
#endif
  return "portable";
}

int32_t struct_size(const char* name) {
#define SIZE_OF(Struct) \
  if (!std::strcmp(name, #Struct)) return sizeof(Struct);
  SIZE_OF(PoolParams)
  SIZE_OF(GemmParams)
  SIZE_OF(GemmFp16Params)
  SIZE_OF(QuantizeParams)
  SIZE_OF(GemmInt8Params)
  SIZE_OF(GemmInt4Params)
  SIZE_OF(SumPartsParams)
  SIZE_OF(EmbedParams)
  SIZE_OF(NormParams)
  SIZE_OF(SiluMulParams)
  SIZE_OF(RotateParams)
  SIZE_OF(ScanParams)
  SIZE_OF(DrawParams)
  SIZE_OF(LogprobParams)
  SIZE_OF(AttentionParams)
  SIZE_OF(PackPart)
  SIZE_OF(PackParams)
  SIZE_OF(PackInt4Params)
  SIZE_OF(QuantizeWeightsParams)
  SIZE_OF(ReadFileParams)
  SIZE_OF(ProgramParams)
#undef SIZE_OF
  return -1;
}

// Misuses AMX in the way that its argument names, for amx_trap.cpp to find; "none" is a use as it should be.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64};
  uint8_t rows[16] = {16, 16, 16};
};

static void configure(const Config& config) { asm volatile("ldtilecfg %0" : : "m"(config) : "memory"); }

int main(int, char** arguments) {
  const std::string misuse = arguments[1];
  alignas(64) static char ones[16][64], sums[16][64];
  std::memset(ones, 1, sizeof ones);
  Config config;
  if (misuse == "other rows") config.rows[1] = 15;
  if (misuse == "other columns") config.row_bytes[2] = 60;
  if (misuse == "other lengths") config.rows[2] = 15;
  if (misuse == "a tall tile") config.rows[0] = 17;
  if (misuse == "a start row") config.start_row = 1;
  if (misuse == "a tile missing") config.rows[2] = config.row_bytes[2] = 0;
  if (misuse != "no permission" && syscall(SYS_arch_prctl, 0x1023, 18)) return 1;
  if (misuse != "no configuration") configure(config);
  if (misuse == "released") _tile_release();
  _tile_zero(0);
  _tile_loadd(1, ones, 64);
  _tile_loadd(2, ones, 64);
  _tile_dpbsud(0, 1, 2);
  _tile_stored(0, sums, 64);
  int32_t first;
  std::memcpy(&first, sums, 4);
  return first != 64;  // 64 products of ones
}

// AMX's registers and instructions as Intel's manual defines them, in memory: for amx_trap.cpp.
//
// What the manual calls an exception ends the process with a line in the report: a tile that is not configured, sizes
// that do not fit together, a configuration that is not allowed, registers without the system's permission.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

constexpr int TILES = 8, ROWS = 16, ROW_BYTES = 64, ROW_WORDS = ROW_BYTES / 4;

[[noreturn]] void fault(const char* what);

struct Tile {
  alignas(64) uint32_t words[ROWS][ROW_WORDS];
};

// The 64 bytes that LDTILECFG reads.
struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

class TileState {
 public:
  void configure(const void* from) {
    TileConfig config;
    std::memcpy(&config, from, sizeof config);
    if (config.palette == 0) return release();
    if (config.palette != 1) fault("LDTILECFG: an unknown palette");
    if (config.start_row) fault("LDTILECFG: a start row");
    for (const uint8_t byte : config.reserved)
      if (byte) fault("LDTILECFG: a reserved byte is not zero");
    for (int t = 0; t < 16; t++) {
      if (config.row_bytes[t] > (t < TILES ? ROW_BYTES : 0) || config.rows[t] > (t < TILES ? ROWS : 0))
        fault("LDTILECFG: a tile of more than 16 rows of 64 bytes, or one above 7");
      if ((config.row_bytes[t] == 0) != (config.rows[t] == 0)) fault("LDTILECFG: a tile has rows of no bytes, or no rows");
    }
    config_ = config, configured_ = true;
    std::memset(tiles_, 0, sizeof tiles_);
  }
  void release() { configured_ = false; }

  void zero(int tile) { of(tile) = {}; }

  void load(int tile, const char* from, int64_t stride) {
    Tile loaded{};  // what lies past a tile's rows and bytes is zero
    for (int r = 0; r < rows(tile); r++) std::memcpy(loaded.words[r], from + r * stride, row_bytes(tile));
    of(tile) = loaded;
  }
  void store(int tile, char* to, int64_t stride) {
    const Tile& stored = of(tile);
    for (int r = 0; r < rows(tile); r++) std::memcpy(to + r * stride, stored.words[r], row_bytes(tile));
  }

  // TDPBF16PS: for each output one chain of fused products of the even elements and one of the odd, from zero, then the
  // sum of both onto the output; rounded to nearest, without denormals, whatever MXCSR says.
  void dot_bf16(int sums, int a, int b) {
    check(sums, a, b);
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x9fc0);  // all exceptions masked, nearest, FTZ and DAZ
    Tile& out = of(sums);
    for (int m = 0; m < rows(sums); m++) {
      alignas(64) float even[ROW_WORDS] = {}, odd[ROW_WORDS] = {}, total[ROW_WORDS];
      for (int k = 0; k < row_bytes(a) / 4; k++) {
        const uint32_t word = of(a).words[m][k];
        const float first = low_half(word), second = high_half(word);
        for (int n = 0; n < ROW_WORDS; n++) {
          even[n] = std::fma(first, low_half(of(b).words[k][n]), even[n]);
          odd[n] = std::fma(second, high_half(of(b).words[k][n]), odd[n]);
        }
      }
      std::memcpy(total, out.words[m], sizeof total);
      for (int n = 0; n < row_bytes(sums) / 4; n++) total[n] += even[n] + odd[n];
      std::memcpy(out.words[m], total, sizeof total);
    }
    clear_rest(sums);
    _mm_setcsr(mode);
  }

  // TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD: sums of products of bytes, A's then B's of type X and Y, modulo 2^32.
  template <class X, class Y> void dot_int8(int sums, int a, int b) {
    check(sums, a, b);
    Tile& out = of(sums);
    for (int m = 0; m < rows(sums); m++)
      for (int k = 0; k < row_bytes(a) / 4; k++) {
        X x[4];
        std::memcpy(x, &of(a).words[m][k], 4);
        for (int n = 0; n < row_bytes(sums) / 4; n++) {
          Y y[4];
          std::memcpy(y, &of(b).words[k][n], 4);
          for (int i = 0; i < 4; i++) out.words[m][n] += (uint32_t)((int32_t)x[i] * y[i]);
        }
      }
    clear_rest(sums);
  }

 private:
  static float low_half(uint32_t word) { return as_float(word << 16); }
  static float high_half(uint32_t word) { return as_float(word & 0xffff0000); }
  static float as_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }

  int rows(int tile) const { return config_.rows[tile]; }
  int row_bytes(int tile) const { return config_.row_bytes[tile]; }

  Tile& of(int tile) {
    if (!configured_) fault("an instruction on tiles without a configuration");
    if (!config_.rows[tile]) fault("a tile that is not configured");
    return tiles_[tile];
  }

  void check(int sums, int a, int b) {
    if (sums == a || sums == b || a == b) fault("a dot product with one tile twice");
    for (const int tile : {sums, a, b}) of(tile);
    if (rows(sums) != rows(a)) fault("a dot product whose sums have other rows than its first factor");
    if (row_bytes(sums) != row_bytes(b)) fault("a dot product whose sums have other columns than its second factor");
    if (row_bytes(a) % 4 || row_bytes(b) % 4 || row_bytes(a) / 4 != rows(b)) fault("a dot product of other lengths");
  }

  void clear_rest(int tile) {
    for (int m = 0; m < ROWS; m++) {
      const int kept = m < rows(tile) ? row_bytes(tile) : 0;
      std::memset((char*)tiles_[tile].words[m] + kept, 0, ROW_BYTES - kept);
    }
  }

  Tile tiles_[TILES]{};
  TileConfig config_{};
  bool configured_ = false;
};

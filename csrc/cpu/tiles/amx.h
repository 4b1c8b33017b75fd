// Tiles of AMX-TILE, AMX-BF16 and AMX-INT8: Sapphire Rapids and later. Vocabulary: tiles.h.
//
// Inline assembly, because gcc 12's intrinsics are macros with literal register numbers, which templates cannot pass, and
// its _tile_loadconfig declares only 8 of the 64 bytes that it reads. A process must have requested permission to use tiles
// (machine.h). Each TileRegisters configures the thread's registers again, because torch, in the same process, uses them
// too.
#pragma once

constexpr bool TILES_ARE_INSTRUCTIONS = true;

template <class T> class TileRegisters {
 public:
  using Sum = typename T::Sum;

  TileRegisters() = default;
  TileRegisters(const TileRegisters&) = delete;
  ~TileRegisters() { asm volatile("tilerelease" : : : "memory"); }  // otherwise each context switch saves 8 KB

  void set_rows(int rows) {
    if (rows == configured_) return;
    configured_ = rows;
    const uint8_t few = (uint8_t)rows, all = TILE_ROWS;
    const Config config{.rows = {few, few, few, few, few, all, all, all}};
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }

  template <int SUMS> void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(SUMS)); }
  template <int SUMS> void load(const Sum* from, size_t stride) { load_tile<SUMS>(from, stride * sizeof(Sum)); }
  template <int SUMS> void store(Sum* to, size_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(SUMS), "r"(to), "r"(stride * sizeof(Sum)) : "memory");
  }
  template <int ROWS> void load_rows(const char* from, size_t stride) { load_tile<ROWS>(from, stride); }
  template <int WORDS> void load_words(const char* from) { load_tile<WORDS>(from, STEP_BYTES); }

  template <int SUMS, int ROWS, int WORDS> void dot() {
    if constexpr (std::is_same_v<T, Int8Tiles>)
      asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(WORDS));
    else asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(WORDS));
  }

 private:
  struct Config {  // what ldtilecfg reads
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};  // of a row
    uint8_t rows[16];
  };

  template <int TILE> static void load_tile(const void* from, size_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(TILE), "r"(from), "r"(stride) : "memory");
  }

  int configured_ = 0;
};

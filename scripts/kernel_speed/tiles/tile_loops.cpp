// The loops of products in tile order, part by part: bench_tiles.py runs this program on some processors at once.
//
//   tile_loops PROCESSOR...     prints a line "loop <tab> dots or loads <tab> nanoseconds each" for every loop
//
// One thread per processor, each with memory of its own. All start a loop together and repeat it for SAMPLE_S; a sample is
// the mean of the threads, a result the median of SAMPLES. The loops of csrc/cpu/gemm/tile_product.h are the real ones;
// the others leave out one of their costs each: the difference of two lines is what that cost takes.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gemm/tile_product.h"

int chunk_pieces = MOST_CHUNK_PIECES;

namespace {

using Registers = TileRegisters<Bf16Tiles>;

constexpr double SAMPLE_S = 0.01;
constexpr int SAMPLES = 9;
constexpr int PIECES = 64;  // of the panel: 2,048 inputs, 256 KB
constexpr int BLOCKS = SLAB_ROWS / TILE_ROWS;
constexpr size_t HUGE_PAGE = 2 << 20;

// A panel in large pages, as weights are; rows and sums in small ones.
struct Memory {
  char* panel;
  std::vector<char> rows = std::vector<char>(SLAB_ROWS * PIECES * PIECE_ROW_BYTES + 64);
  std::vector<float> sums = std::vector<float>(SLAB_ROWS * PANEL + 16);

  Memory() {
    void* all = mmap(nullptr, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) std::perror("mmap"), std::exit(1);
    madvise(all, 2 * HUGE_PAGE, MADV_HUGEPAGE);
    panel = (char*)(((uintptr_t)all + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    std::memset(panel, 0, PIECES * PIECE_BYTES);
  }
  template <class T> static T* aligned(T* p) { return (T*)(((uintptr_t)p + 63) / 64 * 64); }
  float* out() { return aligned(sums.data()); }
  // Rows in the layout of PackedRows: a block of 16 rows has its pieces one after another.
  TileRows block(int i) {
    constexpr size_t PIECE = TILE_ROWS * PIECE_ROW_BYTES;
    return {aligned(rows.data()) + i * PIECES * PIECE, PIECE_ROW_BYTES, PIECE, TILE_ROWS};
  }
  PanelPart part() { return {panel, PIECES, nullptr}; }
};

struct Loop {
  std::string name;
  bool loads;                                       // are counted instead of dots
  std::function<int64_t(Registers&, Memory&)> run;  // once; returns their number
};

void begin(Registers& t) {
  t.set_rows(TILE_ROWS);
  t.zero<0>(), t.zero<1>(), t.zero<2>(), t.zero<3>();
}

int64_t only_dots(Registers& t, Memory& m) {
  begin(t), t.load_rows<4>(m.block(0).at, PIECE_ROW_BYTES);
  t.load_words<5>(m.panel), t.load_words<6>(m.panel), t.load_words<7>(m.panel);
  for (int i = 0; i < 64; i++) t.dot<0, 4, 5>(), t.dot<1, 4, 6>(), t.dot<2, 4, 7>(), t.dot<3, 4, 5>();
  return 256;
}

// Pieces of the panel, each a column of 16 outputs after the other.
int64_t only_words(Registers& t, Memory& m, int pieces) {
  begin(t);
  for (int i = 0; i < pieces; i++) {
    const char* words = m.panel + i * PIECE_BYTES;
    t.load_words<4>(words), t.load_words<5>(words + 64), t.load_words<6>(words + 128), t.load_words<7>(words + 192);
  }
  return 4 * pieces;
}

int64_t only_rows(Registers& t, Memory& m, int blocks) {
  begin(t);
  for (int b = 0; b < blocks; b++)
    for (int i = 0; i < MOST_CHUNK_PIECES; i += 4) {
      const TileRows x = m.block(b);
      t.load_rows<4>(x.piece(i), x.row_bytes), t.load_rows<5>(x.piece(i + 1), x.row_bytes);
      t.load_rows<6>(x.piece(i + 2), x.row_bytes), t.load_rows<7>(x.piece(i + 3), x.row_bytes);
    }
  return MOST_CHUNK_PIECES * blocks;
}

int64_t only_sums(Registers& t, Memory& m, int blocks) {
  begin(t);
  for (int b = 0; b < blocks; b++) {
    float* out = m.out() + b * TILE_ROWS * PANEL;
    t.load<0>(out, PANEL), t.load<1>(out + 16, PANEL), t.load<2>(out + 32, PANEL), t.load<3>(out + 48, PANEL);
    t.store<0>(out, PANEL), t.store<1>(out + 16, PANEL), t.store<2>(out + 32, PANEL), t.store<3>(out + 48, PANEL);
  }
  return 4 * blocks;
}

// Dots that each wait for a load into the register that the dot before reads: fast only if registers are renamed.
int64_t one_register(Registers& t, Memory& m) {
  begin(t), t.load_rows<4>(m.block(0).at, PIECE_ROW_BYTES);
  for (int i = 0; i < 16; i++) {
    t.load_words<5>(m.panel), t.dot<0, 4, 5>(), t.load_words<5>(m.panel + 64), t.dot<1, 4, 5>();
    t.load_words<5>(m.panel + 128), t.dot<2, 4, 5>(), t.load_words<5>(m.panel + 192), t.dot<3, 4, 5>();
  }
  return 64;
}

// multiply_block's loop without sums; `pieces` of the panel and of a block of rows, then the same again.
int64_t no_sums(Registers& t, Memory& m, int pieces) {
  begin(t);
  const TileRows x = m.block(0);
  for (int i = 0; i < 64; i++) {
    const char* words = m.panel + i % pieces * PIECE_BYTES;
    t.load_rows<4>(x.piece(i % pieces), x.row_bytes);
    t.load_words<5>(words), t.load_words<6>(words + 64), t.load_words<7>(words + 128);
    t.dot<0, 4, 5>(), t.load_words<5>(words + 192), t.dot<1, 4, 6>(), t.dot<2, 4, 7>(), t.dot<3, 4, 5>();
  }
  return 256;
}

int64_t block(Registers& t, Memory& m, int blocks, int pieces, bool cold = false) {
  for (int b = 0; b < blocks; b++)
    multiply_block(t, m.out() + b * TILE_ROWS * PANEL, PANEL, true, m.block(b), m.part(), 0, pieces,
                   cold ? piece_ahead(b, blocks) : PieceAhead{});
  return 4 * pieces * blocks;
}

int64_t slab(Registers& t, Memory& m, int chunk) {
  for (int first = 0; first < PIECES; first += chunk)
    for (int b = 0; b < BLOCKS; b++)
      multiply_block(t, m.out() + b * TILE_ROWS * PANEL, PANEL, first > 0, m.block(b), m.part(), first, first + chunk);
  return 4 * PIECES * BLOCKS;
}

// Two blocks of rows by two columns: four loads for four dots, where a block by four columns takes five.
int64_t two_by_two(Registers& t, Memory& m, int chunk) {
  t.set_rows(TILE_ROWS);
  for (int first = 0; first < PIECES; first += chunk)
    for (int column = 0; column < 2; column++)
      for (int b = 0; b < BLOCKS; b += 2) {
        float *out = m.out() + b * TILE_ROWS * PANEL + column * 32, *below = out + TILE_ROWS * PANEL;
        const TileRows x = m.block(b), y = m.block(b + 1);
        begin_sums<0>(t, first, out, PANEL), begin_sums<1>(t, first, out + 16, PANEL);
        begin_sums<2>(t, first, below, PANEL), begin_sums<3>(t, first, below + 16, PANEL);
        for (int i = first; i < first + chunk; i++) {
          const char* words = m.panel + i * PIECE_BYTES + column * 128;
          t.load_words<6>(words), t.load_rows<4>(x.piece(i), x.row_bytes), t.dot<0, 4, 6>();
          t.load_words<7>(words + 64), t.dot<1, 4, 7>();
          t.load_rows<5>(y.piece(i), y.row_bytes), t.dot<2, 5, 6>(), t.dot<3, 5, 7>();
        }
        t.store<0>(out, PANEL), t.store<1>(out + 16, PANEL), t.store<2>(below, PANEL), t.store<3>(below + 16, PANEL);
      }
  return 4 * PIECES * BLOCKS;
}

std::vector<Loop> all_loops() {
  std::vector<Loop> loops;
  const auto add = [&](const std::string& name, bool loads, auto run) { loops.push_back({name, loads, run}); };
  const auto text = [](int number) { return std::to_string(number); };
  add("dots alone", false, only_dots);
  for (int n : {1, 4, 6, 8, 12, 16, 64})
    add("words alone, " + text(4 * n) + " KB", true, [n](auto& t, auto& m) { return only_words(t, m, n); });
  for (int n : {1, 2, 4, BLOCKS})
    add("rows alone, " + text(8 * n) + " KB", true, [n](auto& t, auto& m) { return only_rows(t, m, n); });
  for (int n : {1, BLOCKS})
    add("sums loaded and stored, " + text(4 * n) + " KB", true, [n](auto& t, auto& m) { return only_sums(t, m, n); });
  add("one register for all words", false, one_register);
  for (int n : {1, 4, 8, 64}) add("no sums, " + text(5 * n) + " KB", false, [n](auto& t, auto& m) { return no_sums(t, m, n); });
  for (int n : {4, 8, 64}) add("one block, " + text(n) + " pieces", false, [n](auto& t, auto& m) { return block(t, m, 1, n); });
  add("256 rows, 8 pieces", false, [](auto& t, auto& m) { return block(t, m, BLOCKS, MOST_CHUNK_PIECES); });
  add("the same with prefetches", false, [](auto& t, auto& m) { return block(t, m, BLOCKS, MOST_CHUNK_PIECES, true); });
  for (int n : {2, 4, 8, 16, 32, 64}) add("256 rows, chunks of " + text(n), false, [n](auto& t, auto& m) { return slab(t, m, n); });
  for (int n : {2, 4, 8, 16, 32, 64})
    add("two by two, chunks of " + text(n), false, [n](auto& t, auto& m) { return two_by_two(t, m, n); });
  return loops;
}

// Nanoseconds per dot or load, of one thread.
double sample(const Loop& loop, Registers& t, Memory& m) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  int64_t done = 0;
  double taken = 0;
  while (taken < SAMPLE_S) {
    done += loop.run(t, m);
    taken = std::chrono::duration<double>(Clock::now() - began).count();
  }
  return 1e9 * taken / done;
}

void run(int processor, std::barrier<>& together, std::vector<std::vector<double>>& found) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set))
    std::fprintf(stderr, "this process may not use processor %d\n", processor), std::exit(1);
  Memory memory;
  Registers registers;
  for (const Loop& loop : all_loops()) {
    std::vector<double> taken;
    for (int i = 0; i < SAMPLES; i++) together.arrive_and_wait(), taken.push_back(sample(loop, registers, memory));
    found.push_back(taken);
  }
}

}  // namespace

int main(int count, char** processors) {
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA)) return std::fprintf(stderr, "this machine has no AMX\n"), 2;
  const int threads = count - 1;
  std::barrier together(threads);
  std::vector<std::vector<std::vector<double>>> found(threads);
  std::vector<std::thread> running;
  for (int i = 0; i < threads; i++) running.emplace_back(run, std::atoi(processors[i + 1]), std::ref(together), std::ref(found[i]));
  for (std::thread& thread : running) thread.join();
  const std::vector<Loop> loops = all_loops();
  for (size_t l = 0; l < loops.size(); l++) {
    std::vector<double> means(SAMPLES);
    for (int i = 0; i < SAMPLES; i++)
      for (const auto& of : found) means[i] += of[l][i] / threads;
    std::nth_element(means.begin(), means.begin() + SAMPLES / 2, means.end());
    std::printf("%s\t%s\t%.3f\n", loops[l].name.c_str(), loops[l].loads ? "loads" : "dots", means[SAMPLES / 2]);
  }
}

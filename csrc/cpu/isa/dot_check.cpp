// dot_is_fma: whether this machine's dot instruction for pairs of bfloat16 adds in the order of all other instruction sets:
// the odd product first, then the even one, each fused, with denormals as zeros. Intel's instruction does. If a machine's
// does not, a library without it is used.
//
// Algorithm  compares the dot product of tile.h with two fused products, bit for bit, on random words of three kinds
// Floor      20 us, once per process
#include <algorithm>

#include "api.h"
#include "isa/float_mode.h"
#include "isa/isa.h"

namespace {

constexpr int ROUNDS = 256;  // of each kind: 4096 words

// The exponents of a kind's numbers; the exponents of sums are close to those of the products.
struct Kind {
  int lowest, count;
};
constexpr Kind KINDS[] = {{0, 256}, {118, 20}, {54, 14}};  // all bit patterns; near 1; products denormal or nearly

struct Random {
  uint64_t state = 0x9e3779b97f4a7c15;
  uint32_t next() {  // xorshift
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
  }
  int exponent(Kind kind) { return kind.lowest + (int)(next() % (uint32_t)kind.count); }
  uint32_t half(Kind kind) { return (next() & 0x807f) | (uint32_t)exponent(kind) << 7; }
  uint32_t word(Kind kind) { return half(kind) | half(kind) << 16; }
  uint32_t sum(Kind kind) {
    const int about = std::clamp(exponent(kind) + exponent(kind) - 127, 0, 255);
    return (next() & 0x807fffff) | (uint32_t)about << 23;
  }
};

bool same(F32 a, F32 b) {
  const I32 differ = ((I32)a != (I32)b) & ((a == a) | (b == b));
  return sum(differ) == 0;
}

}  // namespace

int32_t dot_is_fma() {
  const FlushDenormals meanwhile;
  Random random;
  for (const Kind kind : KINDS)
    for (int round = 0; round < ROUNDS; round++) {
      uint32_t words[3][LANES];
      for (int lane = 0; lane < LANES; lane++)
        words[0][lane] = random.word(kind), words[1][lane] = random.word(kind), words[2][lane] = random.sum(kind);
      const I32 w = load_words(words[0]), x = load_words(words[1]), high = splat((int32_t)0xffff0000);
      const F32 start = (F32)load_words(words[2]);
      const F32 odd = fma((F32)(w & high), (F32)(x & high), start), both = fma((F32)(w << 16), (F32)(x << 16), odd);
      if (!same(Bf16::dot(start, Bf16::weights(w), Bf16::row(x)), both)) return 0;
    }
  return 1;
}

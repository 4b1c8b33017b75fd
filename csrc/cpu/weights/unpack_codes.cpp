// unpack_codes: codes of 4 or 8 bits from the 32-bit words of GPTQ, AWQ and compressed-tensors, one code per byte.
//
// Algorithm  a word's nibbles are spread over the bytes of 64 bits by shifts and masks; blocks are gathered in the first-level
//            cache and written to each output's row, one cache line at a time. An activation order is applied to whole rows.
// Shapes     words as `layout` says;  order [inputs];  codes [outputs, inputs]
// Tile       16 outputs x 64 inputs, for AWQ 128 x 64; threads divide the blocks of outputs
// Floor      bytes of words / read bandwidth + bytes of codes / write bandwidth
#include <algorithm>
#include <cstring>
#include <vector>

#include "api.h"
#include "pool.h"

namespace {

enum Layout { ALONG_INPUTS, DOWN_INPUTS, AWQ };  // as in workers/kernels/cpu/unpacking.py

constexpr int LINE = 64;           // codes of an output that are written together
constexpr int OUTPUTS = 16;        // of a block: a cache line of words if these are adjacent
constexpr int AWQ_COLUMNS = 16;    // words of a block, likewise
constexpr int NIBBLES = 8;         // of a word
constexpr int AWQ_NIBBLE[NIBBLES] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of each output of a word

uint64_t nibbles_of(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}

// The codes of one block of outputs; the columns of values are in the order of the inputs.
void unpack_outputs(const UnpackCodesParams& p, int64_t output, int outputs, uint8_t* rows) {
  const int per_word = 32 / p.bits, words = (p.first + p.inputs + per_word - 1) / per_word, step = LINE / per_word;
  alignas(64) uint8_t block[OUTPUTS][LINE];
  for (int from = 0; from < words; from += step) {
    const int count = std::min(step, words - from);
    for (int w = 0; w < count; w++)
      for (int o = 0; o < outputs; o++) {
        const bool along = p.layout == ALONG_INPUTS;
        const uint32_t word = p.words[along ? (output + o) * p.stride + from + w : (from + w) * p.stride + output + o];
        const uint64_t nibbles = nibbles_of(word);
        if (p.bits == 4) std::memcpy(block[o] + w * NIBBLES, &nibbles, sizeof nibbles);
        else std::memcpy(block[o] + w * sizeof word, &word, sizeof word);
      }
    const int value = from * per_word;  // of the block's first column
    const int begin = std::max(value, p.first), end = std::min(value + count * per_word, p.first + p.inputs);
    if (begin < end)
      for (int o = 0; o < outputs; o++)
        std::memcpy(rows + (int64_t)o * p.inputs + begin - p.first, block[o] + begin - value, end - begin);
  }
}

void unpack_block(const UnpackCodesParams& p, int64_t block) {
  const int64_t output = block * OUTPUTS;
  const int outputs = (int)std::min<int64_t>(OUTPUTS, p.outputs - output);
  uint8_t* const rows = p.codes + output * p.inputs;
  if (!p.order) return unpack_outputs(p, output, outputs, rows);
  std::vector<uint8_t> values((size_t)outputs * p.inputs);
  unpack_outputs(p, output, outputs, values.data());
  for (int64_t o = 0; o < outputs; o++)
    for (int64_t j = 0; j < p.inputs; j++) rows[o * p.inputs + j] = values[o * p.inputs + p.order[j]];
}

void unpack_awq_block(const UnpackCodesParams& p, int64_t column, int columns) {
  alignas(64) uint8_t block[AWQ_COLUMNS * NIBBLES][LINE];
  for (int from = 0; from < p.inputs; from += LINE) {
    const int count = std::min(LINE, p.inputs - from);
    for (int i = 0; i < count; i++)
      for (int c = 0; c < columns; c++) {
        const uint32_t word = p.words[(from + i) * p.stride + column + c];
        for (int k = 0; k < NIBBLES; k++) block[c * NIBBLES + k][i] = word >> (4 * AWQ_NIBBLE[k]) & 15;
      }
    for (int row = 0; row < columns * NIBBLES; row++) {
      const int64_t output = column * NIBBLES + row - p.first;
      if (output >= 0 && output < p.outputs) std::memcpy(p.codes + output * p.inputs + from, block[row], count);
    }
  }
}

}  // namespace

void unpack_codes(Pool* pool, const UnpackCodesParams* p) {
  if (p->layout == AWQ) {
    const int columns = (p->first + p->outputs + NIBBLES - 1) / NIBBLES;
    pool->run((columns + AWQ_COLUMNS - 1) / AWQ_COLUMNS, 1, [&](int begin, int end) {
      for (int at = begin * AWQ_COLUMNS; at < std::min(end * AWQ_COLUMNS, columns); at += AWQ_COLUMNS)
        unpack_awq_block(*p, at, std::min(AWQ_COLUMNS, columns - at));
    });
    return;
  }
  const int blocks = (p->outputs + OUTPUTS - 1) / OUTPUTS;
  pool->run(blocks, std::max(1, blocks / (16 * pool->size())), [&](int begin, int end) {
    for (int block = begin; block < end; block++) unpack_block(*p, block);
  });
}

// The rows of a step and their states in the paged cache. Block i of a row holds the state after the row's last computed
// position among [i * block_size, (i + 1) * block_size). A token at position p starts from the state in block
// (p - 1) / block_size, at position 0 from zeros, and its state goes to block p / block_size. So a full block keeps a state,
// from which another row may start. Positions from stored_lens on are drafts: the states after them are not stored.
#pragma once
#include "device.cuh"

struct StateRowsParams {
  const int32_t* row_starts;    // [rows + 1]; row r owns tokens row_starts[r]..row_starts[r + 1]
  const int32_t* kv_lens;       // [rows], positions after the step; 0: pads a graph's batch, neither read nor written
  const int32_t* stored_lens;   // [rows], positions after which states are stored; null: all of kv_lens
  const int32_t* block_tables;  // [rows, table_stride]; entries before the first token's source are not read
  void* states;                 // the layer's state in block 0
  int64_t block_stride;         // bytes from a block to the next
  int32_t rows, table_stride, block_size;
};

// One row's tokens of the step. The functions are of a token's number in the step.
struct RowTokens {
  const StateRowsParams& rows;
  const int row, first;
  int end, start;  // start: the position of the first token
  int stored_end;  // the first token whose state is not stored, or the end

  DEVICE RowTokens(const StateRowsParams& of, int number)
      : rows(of), row(number), first(of.row_starts[number]), end(of.row_starts[number + 1]) {
    const int kv_len = rows.kv_lens[row];
    start = kv_len - (end - first);
    if (kv_len == 0) end = first;
    stored_end = rows.stored_lens ? min(end, first + rows.stored_lens[row] - start) : end;
  }

  DEVICE int position(int token) const { return start + token - first; }
  // Whether the state after the token is kept: it is the last of its block, or of the step without drafts.
  DEVICE bool keeps_state(int token) const {
    if (token >= stored_end) return false;
    return token + 1 == stored_end || (position(token) + 1) % rows.block_size == 0;
  }
  DEVICE unsigned char* state_at(int position) const {
    const int64_t block = rows.block_tables[int64_t(row) * rows.table_stride + position / rows.block_size];
    return static_cast<unsigned char*>(rows.states) + block * rows.block_stride;
  }
  // The state before the first token; null: zeros.
  DEVICE const unsigned char* source() const { return start > 0 ? state_at(start - 1) : nullptr; }
};

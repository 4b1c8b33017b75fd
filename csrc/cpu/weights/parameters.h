// The part of the C ABI that is used while a model loads, see api.h.
#pragma once
#include "exports.h"

// A checkpoint's weights to packed panels, read once and written once: pack.cpp. Elements are numbered as in elements.h.
struct PackPart {
  const void* rows;  // [outputs, inputs] of any alignment
  int64_t stride;    // between rows
  int32_t outputs;
  int32_t element;   // of the rows: any float, or int8 for int8 panels
};
struct PackParams {
  void* panels;           // as GemmParams::weight
  const PackPart* parts;  // [count], stacked along the outputs
  int32_t* not_finite;    // set to 1 if the panels have a NaN or an infinity, otherwise unchanged
  int32_t count, outputs, inputs;
  int32_t element;        // of the panels; int8: code + 128
};
API void pack_rows(Pool*, const PackParams*);

struct PackInt4Params {
  void* panels;            // see gemm/int4/int4.cpp
  const uint8_t* codes;    // [outputs, inputs], 0 to 15
  const uint16_t* scales;  // [outputs, groups] float16, multiples of the unit
  const uint8_t* zeros;    // [outputs, groups], or null
  int64_t stride;          // between rows of codes
  int32_t outputs, inputs, group_size;
};
API void pack_int4(Pool*, const PackInt4Params*);

// Words of a quantized checkpoint to one code per byte. unpack_codes.cpp.
struct UnpackCodesParams {
  uint8_t* codes;         // [outputs, inputs]
  const uint32_t* words;  // as `layout` says
  const int64_t* order;   // [inputs]: the input in the words for each column; null: in order. Not for AWQ
  int64_t stride;         // between rows of words
  int32_t outputs, inputs;
  int32_t first;          // values of the first words to skip
  int32_t bits;           // 4 or 8
  int32_t layout;         // 0: [outputs, words], neighbouring inputs in a word; 1: [words, outputs], the same;
                          // 2: [inputs, words], neighbouring outputs in AWQ's order, 4 bits
};
API void unpack_codes(Pool*, const UnpackCodesParams*);

// Float weights to codes. quantize_weights.cpp.
struct QuantizeWeightsParams {
  void* codes;       // [outputs, columns]: int8, or one 4-bit code per byte
  float* scales;     // int8: [outputs]; int4: [outputs, columns / group_size]
  double* errors;    // [outputs, 2]: sums of squares of the errors, and of the weights
  const void* rows;  // [outputs, inputs] of any alignment
  int64_t stride;
  int32_t outputs, inputs;
  int32_t first_column, columns;  // the range of inputs; an int8 scale is that of the whole row
  int32_t element;                // of the rows, any float
  int32_t group_size;             // int4: 32, 64 or 128; int8: 0
};
API void quantize_weights(Pool*, const QuantizeWeightsParams*);

// Bytes of a file, with a checksum of each megabyte. read_file.cpp.
struct ReadFileParams {
  void* into;        // [bytes], or null: only the checksums are wanted
  uint64_t* sums;    // [megabytes, rounded up]
  int32_t* failure;  // 0, or the first error's number
  int64_t offset, bytes;
  int32_t file;      // descriptor; negative: the bytes are in `into` already
};
API void read_file(Pool*, const ReadFileParams*);

// Bytes of a file, into several pieces of memory, with a checksum of each. read_parts.cpp.
struct ReadPartsParams {
  const uint64_t* addresses;  // [count]
  const int64_t* bytes;       // [count]
  uint64_t* sums;             // [count]
  int32_t* failure;           // 0, or the first error's number
  int64_t offset;
  int32_t count;
  int32_t file;               // descriptor; negative: the bytes are in memory already
};
API void read_parts(Pool*, const ReadPartsParams*);

// quantize_counted, activate_counted: what lies between the products of experts, on a number of rows that is data.
//
// Algorithm  those of quantize_rows (gemm/int8.cpp) and activate (elementwise/elementwise.cpp)
// Shapes     experts/products.h
// Tile       one row by one thread
// Floor      negligible beside the products
#include "api.h"

void quantize_counted(Pool* pool, const CountedQuantizeParams* p) {
  QuantizeParams counted = p->quantize;
  if ((counted.rows = *p->count)) quantize_rows(pool, &counted);
}

void activate_counted(Pool* pool, const CountedActivateParams* p) {
  ActivateParams counted = p->activate;
  if ((counted.rows = *p->count)) activate(pool, &counted);
}
